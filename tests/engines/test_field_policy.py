"""Hard rule 7: every field that an engine's request models know stands in a table, and so do the dangerous ones."""

from __future__ import annotations

import pytest

from engines.fields import GATEWAY, SGLANG, VLLM, FieldPolicy, reserved
from tests.engine_calls import request

# The request models of vLLM 0.32.0 and SGLang 0.5.23, field by field as read in their sources.
VLLM_COMPLETIONS = """
    model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
    stream_options suffix temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking
    length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs
    logprob_token_ids bad_words prompt_embeds add_special_tokens response_format structured_outputs priority
    request_id session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start
    return_token_offsets mm_payload return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs
    repetition_detection thinking_token_budget stream_interval
"""
VLLM_CHAT = """
    messages max_completion_tokens top_logprobs tools tool_choice reasoning_effort include_reasoning chat_template
    chat_template_kwargs add_generation_prompt continue_final_message mm_processor_kwargs return_prompt_text
    parallel_tool_calls
"""
VLLM_GENERATE = """
    token_ids token_offsets sampling_params request_id model stream stream_options output_mode return_token_ids
    cache_salt priority features content_parts kv_transfer_params ec_transfer_params reasoning_ended
    reasoning_parser_kwargs
"""
VLLM_SAMPLING = """
    n presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k min_p seed stop
    stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids
    prompt_logprob_start logprob_token_ids flat_logprobs detokenize skip_special_tokens
    spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval skip_clone
    structured_outputs logit_bias allowed_token_ids extra_args bad_words skip_reading_prefix_cache
    thinking_token_budget repetition_detection routed_experts_prompt_start trace_decode_token_ids
"""
SGLANG_GENERATE = """
    rid session_id text input_ids input_embeds image_data video_data audio_data mm_hashes mm_content_hashes
    use_audio_in_video video_config sampling_params watermark return_logprob logprob_start_len top_logprobs_num
    token_ids_logprob return_sampling_mask sampling_logprobs_mode return_text_in_logprobs
    return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 stream
    log_metrics return_hidden_states return_routed_experts routed_experts_start_len return_indexer_topk modalities
    session_params lora_path lora_id custom_logit_processor positional_embed_overrides bootstrap_host
    bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size routed_dp_rank data_parallel_rank
    disagg_prefill_dp_rank routing_key conversation_id http_worker_ipc background require_reasoning
    max_thinking_tokens priority extra_key no_logs custom_labels return_bytes return_entropy
    return_prompt_token_ids external_trace_header received_time need_wait_for_mm_inputs num_items_assigned
    encoder_urls max_dynamic_patch min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch images_config
    mm_processor_kwargs multi_item_delimiter_indices token_indices_to_pool cache_salt kv_hints
"""
SGLANG_SAMPLING = """
    max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty
    repetition_penalty min_new_tokens n beam_width json_schema regex ebnf structural_tag ignore_eos
    skip_special_tokens spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed
    custom_params watermark
"""
SGLANG_OPENAI = """
    model prompt messages best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop
    stream stream_options suffix temperature top_p user return_hidden_states return_routed_experts
    return_cached_tokens_details return_spec_tokens_details return_token_ids return_input_ids_in_sglext
    return_output_ids_in_sglext top_k min_p min_tokens json_schema regex ebnf repetition_penalty stop_token_ids
    stop_regex no_stop_trim ignore_eos skip_special_tokens lora_path session_id session_params response_format
    custom_params custom_logit_processor rid extra_key cache_salt priority custom_labels bootstrap_host
    bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank input_ids
"""
FIELDS = [
    (policy, name)
    for policy, models in (
        (VLLM, VLLM_COMPLETIONS + VLLM_CHAT + VLLM_GENERATE + VLLM_SAMPLING),
        (SGLANG, SGLANG_GENERATE + SGLANG_SAMPLING + SGLANG_OPENAI),
    )
    for name in sorted(set(models.split()))
]

DANGEROUS = """
    kv_transfer_params ec_transfer_params disaggregated_params bootstrap_host bootstrap_port bootstrap_room
    bootstrap_pair_key bootstrap_anything room data_parallel_rank routed_dp_rank disagg_prefill_dp_rank ctx_dp_rank
    decode_tp_size rid request_id session_id session_params session_whatever routing_key conversation_id lora_path
    lora_id lora_request custom_logit_processor custom_params vllm_xargs extra_args kv_hints input_ids input_embeds
    image_data video_data audio_data other_data truncate_prompt_tokens truncation_side stream stream_options
    stream_interval return_token_ids return_hidden_states custom_labels encoder_urls http_worker_ipc chat_template
    prompt token_ids messages model
"""


@pytest.mark.parametrize(("policy", "name"), FIELDS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_field_of_an_engines_request_stands_in_a_table(policy: FieldPolicy, name: str):
    assert policy.table_of(name) is not None


@pytest.mark.parametrize("name", DANGEROUS.split())
def test_what_names_a_worker_a_transfer_or_code_never_passes(name):
    asked = request(extra_body={name: "evil"})

    assert reserved(name)
    assert (VLLM.passing(asked), SGLANG.passing(asked)) == ({}, {})


@pytest.mark.parametrize("policy", [VLLM, SGLANG])
def test_no_field_stands_in_two_tables(policy: FieldPolicy):
    mapped = policy.mapped | GATEWAY

    assert not mapped & policy.passes
    assert not policy.refused & (mapped | policy.passes)
    assert not [name for name in mapped | policy.passes | policy.refused if reserved(name)]


@pytest.mark.parametrize("policy", [VLLM, SGLANG])
def test_a_field_that_nobody_knows_is_no_sampling_parameter(policy: FieldPolicy):
    asked = request(extra_body={"no_such_field": 1, "bootstrap_host": "evil", "watermark": 2, "n": 3})

    assert policy.table_of("no_such_field") is None
    assert "no_such_field" not in policy.passing(asked)
    assert policy.unknown(asked) == {"no_such_field": 1}


def test_null_means_absent():
    asked = request(extra_body={"bad_words": None, "watermarking": False})

    assert VLLM.passing(asked) == {"watermarking": False}
    assert SGLANG.refusal(asked) is None


@pytest.mark.parametrize("extra_args", [None, {}, {"extra_body": None}, {"extra_body": [1]}, [1]])
def test_a_request_without_such_fields_has_none(extra_args):
    asked = request(extra_args=extra_args)

    assert (VLLM.passing(asked), VLLM.refusal(asked)) == ({}, None)
