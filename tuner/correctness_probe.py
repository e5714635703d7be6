"""Asks a ready server for the answers that it is judged by: short requests beside any load."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from tuner.correctness import ANSWER_TOKENS, TOP, Answers, Reference, Scored, prompts
from tuner.outcome import Crashed, Hung
from tuner.server_keys import keys_of
from tuner.servers.protocol import Server

STAGE = "answers"
POLL_S = 0.1
_NO_NUMBER = float("nan")


class UnaskedError(Exception):
    """The server does not answer such questions: what it computes cannot be judged. Says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """prompt_lengths: of the fixed prompts. reference: whose continuations are scored too, if there is one.
    silence_limit_s: wall seconds that the answer to one question may take. is_simulated: whether the server is.
    """

    prompt_lengths: tuple[int, ...]
    vocab_size: int
    reference: Reference | None
    silence_limit_s: float
    is_simulated: bool = False

    async def of(self, server: Server) -> Answers | Crashed | Hung:
        """Raises UnaskedError where the server cannot be asked."""
        run = asyncio.create_task(self._ask(server))
        death = asyncio.create_task(_death(server))
        try:
            await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                return Crashed(cause="the server ended", stage=STAGE, exit_code=death.result())
            return run.result()
        except TimeoutError:
            return Hung(stage=STAGE, silent_s=self.silence_limit_s)
        except aiohttp.ClientError as error:
            cause = f"a request for log-probabilities failed: {type(error).__name__}: {error}"
            return Crashed(cause=cause, stage=STAGE, exit_code=server.exit_code())
        finally:
            for task in (run, death):
                task.cancel()
            await asyncio.gather(run, death, return_exceptions=True)

    async def _ask(self, server: Server) -> Answers:
        launch = server.launch
        headers = keys_of(launch.command, launch.env).headers("/generate")
        limit = aiohttp.ClientTimeout(total=self.silence_limit_s)
        asked = prompts(self.prompt_lengths, self.vocab_size)
        async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
            questions = _Questions(session, f"{server.base_url}/generate")
            own = await asyncio.gather(
                *(questions.continuation(prompt, self._announced(number)) for number, prompt in enumerate(asked))
            )
            own_read = await questions.readings(asked, own)
            reference = () if self.reference is None else await questions.readings(asked, self.reference.read)
        return Answers(own=tuple(own), own_read=own_read, reference=reference)

    def _announced(self, number: int) -> dict[str, Any]:
        """Said to a simulated server alone: all questions come at once in its time, whatever the wall's."""
        count = len(self.prompt_lengths)
        return {"simulated_load": {"in_flight": count, "number": number, "of": count}} if self.is_simulated else {}


class _Questions:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def continuation(self, prompt: Sequence[int], announced: Mapping[str, Any]) -> Scored:
        """Greedy, with what the server says of each token as it generates it."""
        answer = await self._post(prompt, announced, max_new_tokens=ANSWER_TOKENS, logprob_start_len=-1)
        scored = _scored(answer["meta_info"], "output")
        if len(scored.tokens) != ANSWER_TOKENS:
            raise UnaskedError(f"it gave {len(scored.tokens)} log-probabilities for {ANSWER_TOKENS} tokens")
        return scored

    async def readings(self, asked: Sequence[Sequence[int]], texts: Sequence[Scored]) -> tuple[Scored, ...]:
        """What the server says of `texts` behind the prompts, one after the other: rows of logits take memory."""
        return tuple([await self._reading(prompt, text) for prompt, text in zip(asked, texts, strict=True)])

    async def _reading(self, prompt: Sequence[int], text: Scored) -> Scored:
        words = [*prompt, *text.tokens]
        # The first of the input's places is told without a log-probability (entry None).
        answer = await self._post(words, {}, max_new_tokens=1, logprob_start_len=len(prompt) - 1)
        scored = _scored(answer["meta_info"], "input")
        if scored.tokens != text.tokens:
            raise UnaskedError("its log-probabilities are of other tokens than it was asked about")
        return scored

    async def _post(
        self, words: Sequence[int], announced: Mapping[str, Any], *, max_new_tokens: int, logprob_start_len: int
    ) -> Mapping[str, Any]:
        body = {
            "input_ids": list(words),
            "sampling_params": {"max_new_tokens": max_new_tokens, "ignore_eos": True, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": TOP,
            **announced,
        }
        async with self._session.post(self._url, data=orjson.dumps(body), headers=_JSON) as response:
            said = await response.read()
            if response.status != 200:
                raise UnaskedError(f"HTTP {response.status}: {said[:200].decode(errors='replace')}")
        try:
            answer = orjson.loads(said)
        except orjson.JSONDecodeError:
            raise UnaskedError(f"it answers what is no JSON: {said[:80].decode(errors='replace')}") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("meta_info"), dict):
            raise UnaskedError("its answers have no meta_info")
        return answer


_JSON = {"Content-Type": "application/json"}


def _scored(meta: Mapping[str, Any], side: str) -> Scored:
    """side: `input` or `output`. Places are `[log-probability, token, text]`, the first of the input without a number
    (managers/tokenizer_manager.py:2520).
    """
    places, top = meta.get(f"{side}_token_logprobs"), meta.get(f"{side}_top_logprobs")
    if not isinstance(places, list) or not isinstance(top, list) or len(places) != len(top):
        raise UnaskedError(f"its answers have no {side}_token_logprobs with as many {side}_top_logprobs")
    skipped = 1 if side == "input" else 0
    try:
        return Scored(
            tokens=tuple(int(token) for _, token, *_ in places[skipped:]),
            log_probs=tuple(_number(value) for value, *_ in places[skipped:]),
            top=tuple(
                tuple((int(token), float(value)) for value, token, *_ in place if value is not None)
                for place in top[skipped:]
            ),
        )
    except (TypeError, ValueError) as error:
        raise UnaskedError(f"its log-probabilities cannot be read: {error}") from None


def _number(value: Any) -> float:
    """JSON has no nan: it comes as null."""
    return _NO_NUMBER if value is None else float(value)


async def _death(server: Server) -> int | None:
    """None where the server is lost."""
    while (code := server.exit_code()) is None and not server.lost():  # noqa: ASYNC110 - no event
        await asyncio.sleep(POLL_S)
    return code
