"""A client's tools and tool choice, as the model gets them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from adapters.wire import fields
from adapters.wire.problems import Problem
from core.session.config import NAMED_TOOL, TOOL_CHOICES, Tool
from core.session.decisions.items import TOOLS_MAX

TOOL_BYTES_MAX = 64 * 1024


def tools_of(value: object, param: str) -> tuple[Tool, ...]:
    """The functions of ``tools``. Raises Problem; a tool that the server itself would have to call is one."""
    given = fields.array(value, param)
    if len(given) > TOOLS_MAX:
        raise Problem("invalid_value", f"'{param}' has more than {TOOLS_MAX} tools.", param)
    return tuple(_tool(fields.table(tool, param), f"{param}[{place}]") for place, tool in enumerate(given))


def _tool(tool: Mapping[str, Any], param: str) -> Tool:
    if tool.get("type", "function") != "function":
        raise Problem("unsupported", f"'{param}.type' is 'function'; other tools are not served.", f"{param}.type")
    name = fields.required_id(tool, "name", f"{param}.name")
    description = fields.text(tool.get("description") or "", f"{param}.description", chars_max=TOOL_BYTES_MAX)
    schema = fields.table(tool.get("parameters") or {}, f"{param}.parameters")
    parameters = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(parameters.encode()) > TOOL_BYTES_MAX:
        raise Problem("invalid_value", f"'{param}.parameters' has more than {TOOL_BYTES_MAX} bytes.", param)
    return Tool(name, description, parameters)


def tool_choice_of(value: object, param: str) -> str:
    """``auto``, ``none``, ``required``, or one function by its name. Raises Problem."""
    if isinstance(value, str) and value in TOOL_CHOICES:
        return value
    if isinstance(value, dict) and value.get("type") == "function":
        return NAMED_TOOL + fields.required_id(value, "name", f"{param}.name")
    words = ", ".join(repr(word) for word in TOOL_CHOICES)
    raise Problem("invalid_value", f"'{param}' is {words}, or an object that names one function.", param)
