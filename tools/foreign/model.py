"""The OpenAI-compatible model: it acts out the script of the job named in the prompt."""
import json
import re
import secrets
import threading
import time

from web import Dropped, Refusal, Server


class Model:
    """Chat completions that act out the script of the job named in the prompt."""

    def __init__(self, world):
        self.world = world
        self.key, self.name = "sk-" + secrets.token_hex(20), "scripted-1"
        self.lock, self.down, self.wrong_first = threading.Lock(), False, 1
        self.base_url = Server(world, self.serve).origin + "/v1"

    def serve(self, exchange):
        if exchange.headers.get("Authorization") != "Bearer " + self.key:
            raise Refusal(401, {"error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key"}})
        if self.down:
            raise Refusal(503, {"error": {"message": "overloaded"}})
        if exchange.route == "/v1/models" and exchange.command == "GET":
            return 200, {"object": "list", "data": [{"id": self.name, "object": "model"}]}, {}
        if exchange.route != "/v1/chat/completions" or exchange.command != "POST":
            raise Refusal(404, {"error": {"message": "unknown route"}})
        request = json.loads(exchange.body)
        if request.get("model") != self.name:
            raise Refusal(404, {"error": {"message": "model not found", "code": "model_not_found"}})
        if request.get("stream"):
            raise Refusal(400, {"error": {"message": "stream is not supported"}})
        self.check_history(request)
        text = json.dumps([m.get("content") for m in request["messages"]], ensure_ascii=False)
        tools = [tool["function"] for tool in request.get("tools") or []]
        if self.world.role == "VERIFIER":
            message = self.review(request["messages"], text)
        else:
            message = self.act(text, tools) if tools else self.qualify(text)
        called = bool(message.get("tool_calls"))
        return 200, {"id": "chatcmpl-" + secrets.token_hex(6), "object": "chat.completion", "created": int(time.time()),
                     "model": self.name, "usage": {"prompt_tokens": len(text) // 4, "completion_tokens": 60, "total_tokens": len(text) // 4 + 60},
                     "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if called else "stop"}]}, {}

    def check_history(self, request):
        """Servers refuse a history whose tool calls and answers don't match."""
        open_calls = set()
        for message in request["messages"]:
            role = message["role"]
            if role == "tool":
                if message.get("tool_call_id") not in open_calls:
                    raise Refusal(400, {"error": {"message": "tool answer without a call"}})
                open_calls.discard(message["tool_call_id"])
            elif open_calls:
                raise Refusal(400, {"error": {"message": "tool calls without answers"}})
            if role == "assistant":
                open_calls = {call["id"] for call in message.get("tool_calls") or []}
                for call in message.get("tool_calls") or []:
                    json.loads(call["function"]["arguments"])
        if "temperature" in request:
            self.world.violation("the provider was sent a temperature")

    def qualify(self, text):
        """First a useless answer, then the right one in a fence: neither may cost an attempt."""
        task = self.world.plane.qualification
        if task is None or task["qualification_target_path"] not in text:
            return {"role": "assistant", "content": "ok"}
        content = task["starter_files"][0]["content"] if self.wrong_first > 0 else task["answer"]
        self.wrong_first -= 1
        answer = {"summary": "Return the greeting.", "files": [{"path": task["qualification_target_path"], "content": content}]}
        return {"role": "assistant", "content": "Here it is:\n```json\n" + json.dumps(answer, indent=1) + "\n```\n"}

    def case(self, text):
        """The job that the prompt is about; one that is held gets no answer."""
        numbers = re.findall(r"\(case (\d+)\)", text)
        job = self.world.plane.jobs.get(int(numbers[0])) if numbers else None
        if job is None:
            self.world.violation("a model request that names no case")
            raise Refusal(400, {"error": {"message": "no case"}})
        if job.hold is not None:
            job.held.set()
            job.hold.wait(240)
            raise Dropped()
        return job

    def review(self, messages, text):
        """Judge each criterion by what the prompt shows, in the form that its instructions ask for."""
        job = self.case(text)
        with self.lock:
            if job.overloads > 0:
                job.overloads -= 1
                raise Refusal(503, {"error": {"message": "overloaded"}})
            job.asked += 1
        if job.says is not None and job.asked <= len(job.says):
            return {"role": "assistant", "content": job.says[job.asked - 1]}
        form = next(m["content"] for m in messages if m["role"] == "system")
        key = re.search(r'"(\w+)":\s*\[\s*\{\s*"passed"', form).group(1)
        findings = re.search(r'"(\w+)":\s*\[\s*\{\s*"severity"', form).group(1)
        shown = "\n".join(m["content"] for m in messages if m["role"] == "user")
        answer = {"summary": "Read and weighed. Thanks to @example.", findings: job.model_findings,
                  key: [{"passed": test(shown), "evidence": "calc.py shows it."} for test in job.criteria.values()]}
        return {"role": "assistant", "content": json.dumps(answer)}

    def act(self, text, tools):
        job = self.case(text)
        with self.lock:
            action = job.script[job.cursor % len(job.script)]
            job.cursor += 1
        return self.speak(action, tools)

    def speak(self, action, tools):
        def find(test):
            return next(tool for tool in tools if test(tool["parameters"]["properties"], tool["name"]))
        kind, *values = action
        if kind == "say":
            return {"role": "assistant", "content": values[0]}
        if kind == "run":
            tool = find(lambda fields, _: "command" in fields)
            arguments = {"command": values[0]}
        elif kind == "edit":
            tool = find(lambda fields, _: any(f.startswith("old") for f in fields) and any(f.startswith("new") for f in fields))
            arguments = {field: values[0 if "path" in field or "file" in field else 1 if field.startswith("old") else 2]
                         for field in tool["parameters"]["properties"]
                         if "path" in field or "file" in field or field.startswith(("old", "new"))}
        else:
            tool = find(lambda fields, name: "finish" in name or "summary" in fields)
            arguments = {"summary": "Done: see @example, #1 and ![x](http://example.invalid/x.png)."}
        return {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_" + secrets.token_hex(6), "type": "function",
             "function": {"name": tool["name"], "arguments": json.dumps(arguments)}}]}
