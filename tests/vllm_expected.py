"""What each recorded reply of vLLM 0.32.0 must be read as. Read off the recordings by hand, not by the parser."""

from __future__ import annotations

from protocols.errors import (
    Blame,
    ContextLengthExceeded,
    EngineAborted,
    IncompleteReply,
    InvalidRequest,
    ModelNotFound,
    ProtocolViolation,
    WorkerMisconfigured,
)
from protocols.outputs import FinishReason

LENGTH, STOP, EOS = FinishReason.LENGTH, FinishReason.STOP, FinishReason.EOS

PARIS = "60 23 39614 1141 552 28 2618 2828"
PARIS_16 = PARIS + " 313 7712 769 28 2618 2849 1558 28"
HARBOUR = "504 33059 436 2837 288 2037 260 4051 429 260 3426 284 288 1538 253 2991 284 7002 2257 282 1420 30 378 3102"
HISTORY = "504 1463 282 260 33059 5634 281 260 713 216 33 40 37 32 645 260 28899 4163 3413 260 3102 327 253 1420"
BELONGS = "504 11637 314 216 33 40 37 35 30 2"
DIARY = "504 33059 40061 5454 253 18830 30 1985 260 808 1194 384 4150 563 260 5670 28 260 6792 17559 284 260 1296 7761"
HELPER = (
    "57 5248 22657 327 260 4514 30 339 5248 1535 288 724 346 351 469 4119 10025 30 339 3060 536 957 1450 288 4237 346"
    " 30 3305 2915 28 4119 314 253 1789 338 416 325 3485 28 284 357 506 253 1789 338 416 325 6182 30 339 5248 1535 288"
    " 724 346 351 469 4119 10025 30 2"
)

# name, ids, finish, stop reason, (prompt, completion, cached tokens)
ANSWERS = [
    ("20_completion_ids", PARIS, LENGTH, None, (37, 8, 0)),
    ("21_completion_ids_logprobs", "60 23 39614 1141", LENGTH, None, (37, 4, 32)),
    ("22_completion_ids_stream", PARIS, LENGTH, None, (37, 8, 32)),
    ("23_completion_ids_stream_continuous_usage", "60 23 39614 1141", LENGTH, None, (37, 4, 32)),
    ("28_completion_stop_string", PARIS_16, LENGTH, None, (37, 16, 32)),
    ("29_completion_stop_token", PARIS_16, LENGTH, None, (37, 16, 32)),
    ("31_completion_prompt_logprobs", "260", LENGTH, None, (3, 1, 0)),
    ("36_completion_ignore_eos", PARIS + " 313 7712 769 28", LENGTH, None, (37, 12, 32)),
    (
        "37_completion_stream_utf8_emoji",
        "10813 38887 10813 38887 17097 241 115 40993 179 120 248 17097 241 115 40993 179 120 248 17097 241 115 40993"
        " 179 120",
        LENGTH,
        None,
        None,
    ),
    ("40_generate", PARIS, LENGTH, None, (37, 8, 32)),
    ("41_generate_request_id_logprobs", "60 23 39614 1141", LENGTH, None, (37, 4, 32)),
    ("42_generate_stream", PARIS, LENGTH, None, (37, 8, 32)),
    ("43_generate_stream_continuous_usage_logprobs", "60 23 39614 1141", LENGTH, None, (37, 4, 32)),
    ("44_generate_text_mode", PARIS, LENGTH, None, (37, 8, 32)),
    ("45_generate_text_mode_stream", PARIS, LENGTH, None, None),
    ("47_generate_no_detok", PARIS, LENGTH, None, (37, 8, 32)),
    ("48_generate_stop_string", PARIS_16, LENGTH, None, (37, 16, 32)),
    ("49_generate_default_max_tokens_stream_abort_seen", "60 23 39614", LENGTH, None, None),
    ("52_generate_from_render", PARIS, LENGTH, None, (37, 8, 32)),
    ("b3_prefix_warm_generate", "504 3575", LENGTH, None, (237, 2, 224)),
    ("pd_nixl_00_aggregated_completions", HARBOUR, LENGTH, None, (188, 24, 0)),
    ("pd_nixl_02_decode_completions", HARBOUR, LENGTH, None, (188, 24, 0)),
    ("pd_nixl_03_decode_without_transfer", "504 1463", LENGTH, None, (187, 2, 0)),
    ("pd_nixl_04_aggregated_stream", HISTORY, LENGTH, None, (185, 24, 0)),
    ("pd_nixl_06_decode_stream", HISTORY, LENGTH, None, (185, 24, 0)),
    ("pd_nixl_10_aggregated_generate", HISTORY, LENGTH, None, (191, 24, 0)),
    ("pd_nixl_12_decode_generate", HISTORY, LENGTH, None, (191, 24, 0)),
    ("pd_nixl_14_decode_generate_stream", BELONGS, EOS, None, (192, 10, 0)),
    ("pd_nixl_31_decode_short_prompt", "7042 30 198 198", LENGTH, None, (5, 4, 0)),
    ("pd_nixl_32_prefill_stream", "504", LENGTH, None, (184, 1, 0)),
    ("pd_nixl_34_decode_first_use", "504 1463", LENGTH, None, (184, 2, 0)),
    ("pd_nixl_35_decode_second_use_same_params", "504 1463", LENGTH, None, (184, 2, 0)),
    ("pd_nixl_41_fault_unknown_remote_request_id", "504 1463", LENGTH, None, (185, 2, 0)),
    ("pd_nixl_42_fault_lease_expired", "504 1463 282 260", LENGTH, None, (185, 4, 0)),
    ("pd_nixl_44_decode_still_serves", "504 33059", LENGTH, None, (188, 2, 160)),
    ("pd_shared_00_aggregated_completions", HARBOUR, LENGTH, None, (188, 24, 0)),
    ("pd_shared_02_decode_completions", HARBOUR, LENGTH, None, (188, 24, 160)),
    ("pd_shared_03_decode_without_transfer", "504 1463", LENGTH, None, (187, 2, 0)),
    ("pd_shared_04_aggregated_stream", HISTORY, LENGTH, None, (185, 24, 0)),
    ("pd_shared_06_decode_stream", HISTORY, LENGTH, None, (185, 24, 160)),
    ("pd_shared_10_aggregated_generate", HISTORY, LENGTH, None, (191, 24, 0)),
    ("pd_shared_12_decode_generate", HISTORY, LENGTH, None, (191, 24, 160)),
    ("pd_shared_14_decode_generate_stream", BELONGS, EOS, None, (192, 10, 160)),
    ("pdf_nixl_recompute_00_aggregated_on_decode", DIARY, LENGTH, None, (210, 24, 0)),
    ("pdf_nixl_recompute_02_decode_in_time", DIARY, LENGTH, None, (210, 24, 0)),
    ("pdf_nixl_recompute_04_decode_too_late_stale_kv", " ".join(["49 42 216 198"] * 6), LENGTH, None, (212, 24, 0)),
    ("pdf_nixl_recompute_05_decode_peer_port_unreachable", "504 33059 40061 5454", LENGTH, None, (212, 4, 0)),
    ("x8_generate_from_render", PARIS, LENGTH, None, (37, 8, 0)),
    ("y1_header_request_id_generate", "7042 30", LENGTH, None, (5, 2, 0)),
    ("y2_two_stop_reasons", "7042 30", STOP, ".", (5, 2, 0)),
    ("y3_stop_token_reason", "7042 30", STOP, 30, (5, 2, 0)),
    ("y4_eos_finish", HELPER, EOS, None, (14, 61, 0)),
    ("y5_stop_string_stream", "7042 30", STOP, ".", None),
    ("y6_generate_stop_string_text_mode_stream", "7042 30", STOP, ".", None),
]

# name, number of ids, crc32 of the ids as decimal text
LONG_ANSWERS = [
    ("a3_generate_stream_aborted_by_abort_requests", 1500, 1563257834),
    ("a5_generate_nostream_aborted_by_abort_requests", 1500, 1563257834),
    ("x1_abort_generate_by_own_request_id", 300, 3284053419),
]

# Replies to requests that asked for no ids: readable on the prefill leg, where the token is dropped.
ANSWERS_WITHOUT_IDS = [
    ("32_completion_request_id_header", LENGTH, (37, 2, 32)),
    ("33_completion_cache_salt_priority", LENGTH, (37, 2, 0)),
    ("35_completion_json_schema", EOS, (37, 11, 32)),
    ("82_err_prompt_plus_max_tokens_too_long", LENGTH, (2040, 8, 0)),
    ("95_err_unknown_field_accepted", LENGTH, (37, 1, 32)),
    ("b1_prefix_cold", LENGTH, (237, 2, 32)),
    ("b2_prefix_warm", LENGTH, (237, 2, 224)),
]

# name, the handle's member remote_block_ids, remote_request_id
PREFILLS = [
    ("pd_nixl_01_prefill_completions", [[7, 8, 9, 10, 11, 12]], "cmpl-pd-req-1-0-bc639957", "504", (188, 1, 0)),
    (
        "pd_nixl_05_prefill_for_stream",
        [[18, 19, 20, 21, 22, 23]],
        "cmpl-8638b103890ee601-0-b23c3376",
        "504",
        (185, 1, 0),
    ),
    (
        "pd_nixl_11_prefill_generate",
        [[29, 30, 31, 32, 33, 34]],
        "generate-tokens-pd-gen-1-a7930e21",
        "504",
        (191, 1, 0),
    ),
    (
        "pd_nixl_13_prefill_generate_for_stream",
        [[40, 41, 42, 43, 44, 45]],
        "generate-tokens-a8134299f5e5d473-9911f8c6",
        "504",
        (192, 1, 0),
    ),
    ("pd_nixl_30_prefill_short_prompt", [[57]], "cmpl-9e986bb640eed3bb-0-950c9203", "7042", (5, 1, 0)),
    (
        "pd_nixl_33_prefill_for_reuse",
        [[63, 64, 65, 66, 67, 68]],
        "cmpl-a4ec23d990aae263-0-9e08d377",
        "504",
        (184, 1, 0),
    ),
    (
        "pd_nixl_38_prefill_max_tokens_4",
        [[62, 68, 69, 70, 71, 72]],
        "cmpl-b68baf566d01db62-0-be77f336",
        "504 1463 282 260",
        (184, 4, 0),
    ),
    ("pdf_nixl_recompute_01_prefill", [[1, 2, 3, 4, 5, 6, 7]], "cmpl-bae31b0498bd1318-0-841ec520", "504", (210, 1, 0)),
    (
        "pdf_nixl_recompute_03_prefill_then_late",
        [[7, 8, 9, 10, 11, 12, 13]],
        "cmpl-af41cba7b2936d52-0-87809101",
        "504",
        (212, 1, 0),
    ),
]

UNPINNED_PREFILLS = [
    "pd_shared_01_prefill_completions",
    "pd_shared_05_prefill_for_stream",
    "pd_shared_11_prefill_generate",
    "pd_shared_13_prefill_generate_for_stream",
]

# name, ids before the failure, what it is
FAILED_ANSWERS = [
    ("24_completion_text_stream_plain", "", ProtocolViolation),
    ("25_completion_batch2_ids", "", ProtocolViolation),
    ("26_completion_batch2_stream", "60", ProtocolViolation),
    ("27_completion_n2_seed", "", ProtocolViolation),
    ("30_completion_echo_logprobs", "", ProtocolViolation),
    ("46_generate_n2", "", ProtocolViolation),
    ("a1_client_abort_stream", "60 23 39614 1141 552", IncompleteReply),
    ("a8_completion_stream_aborted_by_id", "", ProtocolViolation),
    (
        "x2_abort_generate_by_returned_request_id",
        "7042 30 198 198 504 2988 314 42 216 34 32 33 40 29 32 33 29 34",
        EngineAborted,
    ),
    (
        "x3_abort_generate_nostream_by_returned_id",
        "7042 30 198 198 504 2988 314 42 216 34 32 33 40 29 32 33 29 34 34 216 33",
        EngineAborted,
    ),
    ("x4_abort_completion_by_id", "", ProtocolViolation),
    ("x5_abort_completion_by_id_0", "", ProtocolViolation),
]

# name, what it is, part of its words, the field it names
REFUSALS = [
    ("34_completion_max_tokens_0", InvalidRequest, "max_tokens must be at least 1, got 0", "max_tokens"),
    ("80_err_bad_json", InvalidRequest, "JSON decode error", "40"),
    ("81_err_too_long_ids", ContextLengthExceeded, "maximum context length is 2048 tokens", "input_tokens"),
    ("83_err_unknown_model", ModelNotFound, "The model `nope` does not exist", "model"),
    ("84_err_unknown_lora", ModelNotFound, "`my-lora-adapter` does not exist", "model"),
    ("85_err_negative_temperature", InvalidRequest, "temperature must be non-negative, got -1.0", "temperature"),
    ("86_err_missing_prompt", InvalidRequest, "Either prompt or prompt_embeds must be provided", "prompt"),
    ("87_err_empty_prompt_list", InvalidRequest, "You must pass at least one prompt", None),
    ("88_err_token_out_of_vocab", InvalidRequest, "Token id 999999 is out of vocabulary", None),
    ("89_err_wrong_content_type", InvalidRequest, "Unsupported Media Type", None),
    ("90_err_404", WorkerMisconfigured, "Not Found", None),
    ("91_err_405", WorkerMisconfigured, "Method Not Allowed", None),
    ("92_err_too_many_logprobs", InvalidRequest, "greater than max allowed: 20", "logprobs"),
    ("93_err_negative_max_tokens", InvalidRequest, "max_tokens must be at least 1, got -3", "max_tokens"),
    ("94_err_wrong_type", InvalidRequest, "Input should be a valid integer", "max_tokens"),
    (
        "97_err_stream_error_before_start",
        ContextLengthExceeded,
        "your prompt contains 2100 input tokens",
        "input_tokens",
    ),
    ("98_err_generate_bad_json", InvalidRequest, "JSON decode error", "1"),
    ("98_err_generate_empty", InvalidRequest, "List should have at least 1 item", "token_ids"),
    ("98_err_generate_neg_token", InvalidRequest, "token_ids must not contain negative values", "token_ids"),
    ("98_err_generate_negative_temperature", InvalidRequest, "temperature must be non-negative", "temperature"),
    ("98_err_generate_no_sampling_params", InvalidRequest, "Field required", "sampling_params"),
    ("98_err_generate_out_of_vocab", InvalidRequest, "Token id 999999 is out of vocabulary", None),
    ("98_err_generate_too_long", ContextLengthExceeded, "longer than the maximum model length of 2048", None),
    ("98_err_generate_unknown_model", ModelNotFound, "The model `nope` does not exist", "model"),
    ("a7_abort_bad_body", InvalidRequest, "Missing 'request_ids' in request body", None),
    ("d01_generate_disabled_403", WorkerMisconfigured, "Scale-out endpoints are disabled", None),
    ("d04_abort_disabled", WorkerMisconfigured, "Scale-out endpoints are disabled", None),
]

# name, who is to blame: decode cannot tell a dead peer from a broken transfer, but knows when its own engine died
DECODE_FAILURES = [
    ("pd_nixl_36_decode_unknown_remote_request", Blame.WORKER),
    ("pd_nixl_37_decode_peer_unreachable", Blame.WORKER),
    ("pd_nixl_40_fault_peer_port_unreachable", Blame.PAIR),
    ("pd_nixl_43_fault_prefill_killed_before_decode", Blame.PAIR),
    ("pd_nixl_46_fault_too_few_remote_block_ids", Blame.WORKER),
]
