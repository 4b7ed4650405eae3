"""The fake engine with steps that all requests share, as vLLM has them: what one computes, the others wait for."""

from __future__ import annotations

import asyncio

import attrs

from tests.gpu_runtime.engines.fake import FakeOptions, FakeRequests


@attrs.frozen
class StepOptions:
    """A step takes ``base_s``, and more for each token of a prompt and for each that is decoded. ``piece_tokens``: so much of
    each long prompt, in steps in which somebody speaks."""

    base_s: float = 0.012
    prompt_s: float = 0.001
    decode_s: float = 0.00005
    tokens_max: int = 128
    piece_tokens: int = 4


@attrs.define(eq=False)
class _Want:
    left: int
    prompt: bool
    done: asyncio.Event = attrs.field(factory=asyncio.Event)


class SteppedRequests(FakeRequests):
    """See RequestEngine. ``longest_s``: the longest step so far."""

    def __init__(self, options: FakeOptions, steps: StepOptions) -> None:
        super().__init__(options)
        self._steps = steps
        self._wants: list[_Want] = []
        self._stepping: asyncio.Task[None] | None = None
        self.longest_s = 0.0

    async def spend(self, tokens: int, prompt: bool = False) -> None:
        """See FakeRequests: until the steps have come to it."""
        if not tokens:
            return
        want = _Want(tokens, prompt)
        self._wants.append(want)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._run())
        try:
            await want.done.wait()
        finally:
            if want in self._wants:
                self._wants.remove(want)

    async def _run(self) -> None:
        while self._wants:
            shares = self._share()
            steps = self._steps
            seconds = steps.base_s + sum(
                tokens * (steps.prompt_s if want.prompt else steps.decode_s) for want, tokens in shares
            )
            self.longest_s = max(self.longest_s, seconds)
            await asyncio.sleep(seconds)
            for want, tokens in shares:
                want.left -= tokens
                if not want.left:
                    want.done.set()
            self._wants = [want for want in self._wants if want.left]
            await asyncio.sleep(1e-6)  # who was told something asks for more

    def _share(self) -> list[tuple[_Want, int]]:
        steps = self._steps
        speaks = any(want.left <= steps.piece_tokens for want in self._wants)
        left = steps.tokens_max
        shares = []
        for want in self._wants:
            tokens = min(want.left, left, steps.piece_tokens if speaks else left)
            left -= tokens
            if tokens:
                shares.append((want, tokens))
        return shares
