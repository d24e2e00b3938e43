// Runs scenarios against every model, and prints what came of each as a line of JSON.

export const CHAT = [{ role: "user", content: "What is the weather in Paris?" }];
export const SAID = "Hello there.";
export const THOUGHTS = "The user greets me.";

const ENGINES = ["vllm", "sglang", "trtllm"];

/**
 * `scenarios`: by name, a function of `{ url, model }`, or `{ run, thinks, engines }`: `thinks` for the models that
 * think (and make vectors), `engines` where not all can.
 */
export async function main(scenarios) {
  const [, , command, demo, thinkers] = process.argv;
  for (const [name, scenario] of Object.entries(scenarios)) {
    const { run, thinks = false, engines = ENGINES } = typeof scenario === "function" ? { run: scenario } : scenario;
    if (command === "list") {
      console.log(JSON.stringify({ name, engines }));
      continue;
    }
    const places = engines.map((engine) => ({
      engine,
      url: thinks ? thinkers : demo,
      model: `${thinks ? "thinks" : "demo"}-${engine}`,
    }));
    await Promise.all(places.map((place) => told(name, run, place)));
  }
}

async function told(name, run, { engine, ...place }) {
  let error = null;
  try {
    await run(place);
  } catch (thrown) {
    error = `${thrown.stack ?? thrown}${thrown.cause ? `\ncaused by ${thrown.cause.stack ?? thrown.cause}` : ""}`;
  }
  console.log(JSON.stringify({ name, engine, error }));
}
