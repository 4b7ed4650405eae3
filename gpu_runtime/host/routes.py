"""Which sink hears which session."""

from __future__ import annotations

from core.ports.runtime import FromRuntime, RuntimeLost, RuntimeReady, RuntimeSink


class Routes:
    """One sink a session, the newest wins. Messages for a session without a sink are dropped."""

    def __init__(self) -> None:
        self._sinks: dict[str, RuntimeSink] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    def __contains__(self, session: str) -> bool:
        return session in self._sinks

    def subscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        self._sinks[session] = sink

    def unsubscribe(self, session: str, sink: RuntimeSink) -> None:
        """See core.ports.runtime.Runtime."""
        # Equality and not identity: a bound method is a new object each time that it is named.
        if self._sinks.get(session) == sink:
            del self._sinks[session]

    def deliver(self, message: FromRuntime) -> None:
        """To its session, or to all. A sink may subscribe, unsubscribe and send while it is called."""
        if isinstance(message, RuntimeLost | RuntimeReady):
            for session, sink in list(self._sinks.items()):
                if self._sinks.get(session) == sink:
                    sink(message)
            return
        self.tell(message.session, message)

    def tell(self, session: str, message: FromRuntime) -> None:
        """To one session, also what names none."""
        sink = self._sinks.get(session)
        if sink is not None:
            sink(message)
