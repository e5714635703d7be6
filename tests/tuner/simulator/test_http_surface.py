"""The wire formats of sglang 0.5.23 (entrypoints/http_server.py, managers/tokenizer_manager.py)."""

from __future__ import annotations

import itertools
import signal
import threading

import orjson
import pytest

TP8 = ("--tp-size", "8", "--mem-fraction-static", "0.9")
PROMPT = list(range(10, 74))


@pytest.fixture(scope="module")
def simulator(launch):
    flags = (*TP8, "--ep-size", "8", "--stream-interval", "4", "--enable-metrics")
    with launch(*flags, "--simulated-because", "no GPU was found") as simulator:
        simulator.wait_ready()
        yield simulator


def generation(**more):
    return {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 10, "ignore_eos": True, "temperature": 0.0},
        **more,
    }


def events(data):
    """What a stream holds: its `data:` lines, each followed by an empty one."""
    parts = data.split(b"\n\n")
    assert parts[-1] == b""
    return [part.removeprefix(b"data: ") for part in parts[:-1]]


def test_a_stream_repeats_all_output_in_every_chunk_and_ends_with_done(simulator):
    status, data = simulator.call("/generate", generation(stream=True, rid="abc"))
    *chunks, done = events(data)
    assert (status, done) == (200, b"[DONE]")
    chunks = [orjson.loads(chunk) for chunk in chunks]
    # The first token at once, then four at a time, then the rest.
    assert [c["meta_info"]["completion_tokens"] for c in chunks] == [1, 5, 9, 10]
    for chunk, later in itertools.pairwise(chunks):
        assert later["output_ids"][: len(chunk["output_ids"])] == chunk["output_ids"]
        assert later["text"].startswith(chunk["text"])
        assert later["meta_info"]["simulated_time_s"] > chunk["meta_info"]["simulated_time_s"]
    assert [c["meta_info"]["finish_reason"] for c in chunks[:-1]] == [None] * 3
    first, last = chunks[0]["meta_info"], chunks[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "length", "length": 10}
    assert (last["id"], last["prompt_tokens"], last["cached_tokens"], last["num_retractions"]) == ("abc", 64, 0, 0)
    assert last["e2e_latency"] == pytest.approx(last["simulated_time_s"] - first["simulated_arrival_s"])
    assert "simulated_arrival_s" not in last


def test_an_answer_in_one_piece_holds_what_the_stream_ends_with(simulator):
    whole = simulator.json("/generate", generation())
    streamed = orjson.loads(events(simulator.call("/generate", generation(stream=True))[1])[-2])
    assert whole["output_ids"] == streamed["output_ids"]
    assert whole["text"] == streamed["text"]
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 10}


def test_equal_prompts_get_equal_answers_and_others_do_not(simulator):
    one, same, other = (simulator.json("/generate", generation(input_ids=ids)) for ids in (PROMPT, PROMPT, PROMPT[1:]))
    assert one["output_ids"] == same["output_ids"] != other["output_ids"]


def test_output_ends_by_itself_where_it_may(simulator):
    sampling = {"max_new_tokens": 20000}
    answers = [
        simulator.json("/generate", {"text": f"Tell me of the number {i}.", "sampling_params": sampling})
        for i in range(5)
    ]
    reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in answers]
    lengths = {answer["meta_info"]["completion_tokens"] for answer in answers}
    assert "stop" in reasons
    assert len(lengths) == 5


def test_a_request_for_no_token_ends_with_its_prefill(simulator):
    answer = simulator.json("/generate", generation(sampling_params={"max_new_tokens": 0}))
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_an_id_that_is_in_use_is_refused(launch):
    with launch(*TP8, scale="2000") as simulator:
        simulator.wait_ready()
        endless = generation(rid="same", sampling_params={"max_new_tokens": 200_000, "ignore_eos": True})
        asking = threading.Thread(target=lambda: simulator.call("/generate", endless, timeout_s=60))
        asking.start()
        simulator.wait_until(lambda: simulator.json("/v1/loads")["loads"][0]["num_running_reqs"] == 1)
        status, data = simulator.call("/generate", generation(rid="same"))
        assert (status, orjson.loads(data)) == (400, {"error": {"message": "Duplicate request ID detected: same"}})
        # Ids are compared whole: no request goes by this one.
        assert simulator.status("/abort_request", {"rid": "sa"}) == 200
        assert simulator.json("/v1/loads")["loads"][0]["num_running_reqs"] == 1
        assert simulator.status("/abort_request", {"rid": "same"}) == 200
        asking.join()


def test_text_is_counted_as_a_token_for_four_bytes(simulator):
    answer = simulator.json("/generate", {"text": "x" * 400, "sampling_params": {"max_new_tokens": 2}})
    assert answer["meta_info"]["prompt_tokens"] == 100


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Either text, input_ids or input_embeds should be provided."),
        (generation(text="both"), "Either text, input_ids or input_embeds should be provided."),
        (generation(input_ids=[PROMPT, PROMPT]), "one list of token ids"),
        (generation(input_ids=[10**7]), "outside the vocab size"),
        (generation(sampling_params={"max_new_tokens": -1}), "max_new_tokens must be at least 0, got -1."),
    ],
)
def test_what_cannot_be_served_is_refused_with_400(simulator, body, message):
    status, data = simulator.call("/generate", body)
    assert status == 400
    assert message in orjson.loads(data)["error"]["message"]


def test_a_prompt_that_is_too_long_is_a_400_or_an_error_inside_the_stream(simulator):
    room = simulator.json("/server_info")["max_req_input_len"]
    too_long = generation(input_ids=[7] * room)
    status, data = simulator.call("/generate", too_long)
    assert status == 400
    message = orjson.loads(data)["error"]["message"]
    assert message.startswith(f"Input length ({room} tokens) exceeds the maximum allowed length ({room} tokens).")
    status, data = simulator.call("/generate", too_long | {"stream": True})
    assert status == 200
    assert orjson.loads(events(data)[0])["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "code": 400,
        "retryable": False,
    }
    assert events(data)[-1] == b"[DONE]"


def test_server_info_tells_the_effective_layout_its_memory_and_that_it_is_simulated(simulator):
    info = simulator.json("/server_info")
    assert (info["tp_size"], info["ep_size"], info["version"], info["status"]) == (8, 8, "0.5.23", "ready")
    assert info["chunked_prefill_size"] == 8192  # the engine's default on a card of 95 GiB
    assert info["simulated"]["reason"] == "no GPU was found"
    # Weights of 595 GB are not read in a minute.
    assert 60 < info["startup_time"]["load_weight"] < info["startup_time"]["tokenizer_e2e"]
    (state,) = info["internal_states"]
    memory = state["memory_usage"]
    assert memory["token_capacity"] == info["max_total_num_tokens"]
    assert 70 < memory["weight"] < 74
    assert state["effective_max_running_requests_per_dp"] > 0
    assert simulator.json("/get_server_info")["max_total_num_tokens"] == info["max_total_num_tokens"]


def test_each_attention_dp_rank_has_a_pool_of_its_own(launch):
    with launch(*TP8, "--attn-dp-size", "4", "--ep-size", "8") as simulator:
        simulator.wait_ready()
        info = simulator.json("/server_info")
        assert len(info["internal_states"]) == 4
        assert info["chunked_prefill_size"] == 8192 // 4
        ranks = {simulator.json("/generate", generation())["meta_info"]["dp_rank"] for _ in range(8)}
        assert ranks == {0, 1, 2, 3}


def test_models_lists_the_served_one_and_that_it_is_simulated(simulator):
    (card,) = simulator.json("/v1/models")["data"]
    assert card["id"] == "kimi-k2.6"
    assert card["max_model_len"] == 262144  # the model's own config.json
    assert card["simulated"]["reason"] == "no GPU was found"


def test_the_first_log_line_says_that_it_is_simulated(simulator):
    first = simulator.log.splitlines()[0]
    assert "SIMULATED SGLang 0.5.23: no GPU is used; times are simulated seconds" in first


def test_metrics_are_prometheus_text_under_the_engines_names(simulator):
    simulator.json("/generate", generation())
    status, data = simulator.call("/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in data.decode().splitlines() if not line.startswith("#"))
    labels = 'engine_type="unified",model_name="kimi-k2.6"'
    assert values[f"sglang:simulated{{{labels}}}"] == "1.0"
    assert float(values[f"sglang:generation_tokens_total{{{labels}}}"]) >= 10
    assert float(values[f'sglang:num_running_reqs{{{labels},moe_ep_rank="0",pp_rank="0",tp_rank="0"}}']) == 0


def test_metrics_are_not_there_unless_asked_for_and_ids_alone_need_no_tokenizer(launch):
    with launch(*TP8, "--skip-tokenizer-init") as simulator:
        simulator.wait_ready()
        assert simulator.status("/metrics") == 404
        assert simulator.json("/generate", generation()).keys() == {"output_ids", "meta_info"}
        status, data = simulator.call("/generate", {"text": "hello"})
        assert status == 400
        assert b"skip_tokenizer_init=True cannot accept text prompts" in data


def test_loads_count_what_each_rank_does(simulator):
    (load,) = simulator.json("/v1/loads")["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]) == (0, 0, 0)
    assert load["max_total_num_tokens"] == simulator.json("/server_info")["max_total_num_tokens"]


def test_flags_of_the_engine_that_do_not_matter_here_are_let_pass(launch):
    flags = ("--trust-remote-code", "--attention-backend", "flashinfer", "--log-level=info", "--disable-radix-cache")
    with launch(*TP8, *flags) as simulator:
        simulator.wait_ready()


def test_layouts_that_compute_wrongly_unnoticed_answer_differently(launch):
    # Mixtral ignores attention data parallelism (models/mixtral.py:137).
    answers = []
    for flags in (("--tp-size", "8"), ("--tp-size", "8", "--attn-dp-size", "2")):
        with launch(*flags, model="mixtral-8x7b", cluster="8xh200") as simulator:
            simulator.wait_ready()
            answers.append(simulator.json("/generate", generation())["output_ids"])
    assert answers[0] != answers[1]


def test_a_config_json_in_a_folder_is_served_on_ranks_of_a_host_too(launch, tmp_path):
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 64,
        "intermediate_size": 256,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_bytes(orjson.dumps(config))
    with launch("--tp-size", "2", "--ep-size", "2", model=str(tmp_path), cluster="2xcpu") as simulator:
        simulator.wait_ready()
        assert simulator.json("/generate", generation())["meta_info"]["completion_tokens"] == 10
        assert "CUDA graph" not in simulator.log


def test_the_port_is_bound_when_loaded_and_health_turns_good_after_warm_up(launch):
    with launch(cluster="1xh100", model="qwen3-30b-a3b", scale="20") as simulator:
        seen = []

        def is_ready():
            status = simulator.status("/ready")
            if status == 503:
                assert simulator.status("/v1/models") == 200
                seen.append(simulator.status("/health_generate"))
            elif status is None:
                seen.append(None)
            return status == 200

        simulator.wait_until(is_ready)
        assert seen[0] is None
        # What was asked just before it became ready may be answered just after.
        assert 503 in seen
        assert None not in seen[seen.index(503) :]
        assert simulator.status("/health") == 200
        milestones = [
            "Init parallel begin.",
            "Load weight begin. avail mem=",
            "Load weight end. elapsed=",
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: ",
            "Memory pool end. avail mem=",
            "Capture target decode CUDA graph begin.",
            "Capture target decode CUDA graph end.",
            "max_total_num_tokens=",
            "Uvicorn running on",
            "The server is fired up and ready to roll!",
        ]
        places = [simulator.log.index(text) for text in milestones]
        assert places == sorted(places)


def test_sigterm_lets_running_requests_end_and_exits_with_0(launch):
    with launch(cluster="1xh100", model="qwen3-30b-a3b", scale="100") as simulator:
        simulator.wait_ready()
        answers = []
        body = generation(sampling_params={"max_new_tokens": 20_000, "ignore_eos": True})
        asking = threading.Thread(target=lambda: answers.append(simulator.json("/generate", body)))
        asking.start()
        simulator.wait_until(lambda: simulator.json("/v1/loads")["loads"][0]["num_running_reqs"] == 1)
        simulator.process.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0]["meta_info"]["completion_tokens"] == 20_000
        assert simulator.exit_code() == 0
        assert "Gracefully exiting... Remaining number of requests 1. Remaining requests " in simulator.log
        assert "Gracefully exiting... Remaining number of requests 0. " in simulator.log.splitlines()[-1]
