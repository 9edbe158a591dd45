#!/usr/bin/env python3
"""The server with OpenAI's own client: `ddtree serve` on the demo model, and chats and tools on scripted tokens.

usage: openai_client.py [BUILD_DIR]     needs requirements.txt; BUILD_DIR/bin/{ddtree,scripted_server}; exits 1 on failure
"""
import json
import pathlib
import subprocess
import sys
import unittest
import urllib.request

import openai

BIN = (sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build") + "/bin/"
DEMO = str(pathlib.Path(__file__).resolve().parents[2] / "models/demo")
PROMPT = "def main():\n"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
CALLS = ("<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"city\": \"Köln\"}<|tool_call_end|>"
         "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>")


class Demo(unittest.TestCase):
    """Greedy text of the demo model."""

    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([BIN + "ddtree", "serve", DEMO, "--port", "0", "--api-key", "secret", "--served-model-name", "demo"],
                                      stderr=subprocess.PIPE, text=True)
        port = None
        for line in cls.server.stderr:
            event = json.loads(line)
            port = event.get("port", port) if event["event"] == "listening" else port
            if event["event"] == "ready":
                break
        cls.url = f"http://127.0.0.1:{port}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.communicate(timeout=60)
        assert cls.server.returncode == 0

    def complete(self, **more):
        return self.client.completions.create(**{"model": "demo", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **more})

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt")

    def test_text_is_that_of_run_in_every_mode(self):
        run = json.loads(subprocess.run([BIN + "ddtree", "run", DEMO, "--prompt", PROMPT, "--max-tokens", "24", "--json"], check=True,
                                        capture_output=True, text=True).stdout)
        for mode in ("off", "chain", "tree"):
            body = {"speculation": {"mode": mode}, "return_token_ids": True, "timings": True}
            reply = self.complete(extra_body=body)
            self.assertEqual(reply.choices[0].text, run["text"])
            self.assertEqual(reply.choices[0].token_ids, run["ids"])
            self.assertEqual(reply.usage.completion_tokens, len(run["ids"]))
            self.assertEqual(reply.timings["mode"], mode)
            chunks = list(self.complete(extra_body=body, stream=True, stream_options={"include_usage": True}))
            self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), run["text"])
            self.assertEqual(chunks[-1].usage.completion_tokens, len(run["ids"]))
            self.assertEqual(chunks[-1].choices, [])

    def test_choices_and_log_probabilities(self):
        reply = self.complete(n=2, logprobs=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in reply.choices], [0, 1])
        for choice in reply.choices:
            for token, value, top in zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
                self.assertEqual(top[token], value)
                self.assertLessEqual(value, max(top.values()))
                self.assertIn(len(top), (3, 4))
        again = self.complete(n=2, logprobs=3, temperature=1, seed=5, extra_body={"speculation": {"mode": "off"}})
        self.assertEqual([c.text for c in again.choices], [c.text for c in reply.choices])

    def test_stop(self):
        text = self.complete().choices[0].text
        stop = text[5:8]
        reply = self.complete(stop=[stop])
        self.assertEqual(reply.choices[0].text, text[:text.find(stop)])
        self.assertEqual(reply.choices[0].finish_reason, "stop")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.complete(temperature=3)
        self.assertEqual((raised.exception.param, raised.exception.code), ("temperature", "invalid_value"))
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="gpt")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url, api_key="wrong", max_retries=0).models.list()

    def test_chat(self):
        reply = self.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
        self.assertEqual((reply.usage.completion_tokens, reply.choices[0].finish_reason), (4, "length"))

    def test_abort(self):
        stream = self.complete(max_tokens=4000, stream=True, extra_body={"ignore_eos": True, "speculation": {"mode": "off"}})
        next(iter(stream))
        stream.close()
        self.assertTrue(self.complete().choices[0].text)

    def test_tokenize(self):
        def post(path, body):
            request = urllib.request.Request(self.url.removesuffix("/v1") + path, json.dumps(body).encode(),
                                             {"Authorization": "Bearer secret", "Content-Type": "application/json"})
            return json.load(urllib.request.urlopen(request))
        ids = post("/tokenize", {"prompt": PROMPT})["tokens"]
        self.assertEqual(post("/detokenize", {"tokens": ids}), {"prompt": PROMPT})


class Scripted(unittest.TestCase):
    """The server says what the user says."""

    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([BIN + "scripted_server", "kimi-k2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        url = f"http://127.0.0.1:{int(cls.server.stdout.readline())}/v1"
        cls.client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.server.communicate(timeout=60)
        assert cls.server.returncode == 0

    def chat(self, text, **more):
        return self.client.chat.completions.create(model="ddtree", messages=[{"role": "user", "content": text}], **more)

    def test_chat(self):
        reply = self.chat("Grüße 😀")
        self.assertEqual((reply.choices[0].message.content, reply.choices[0].finish_reason), ("Grüße 😀", "stop"))

    def test_stream(self):
        chunks = list(self.chat("Grüße 😀", stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks[:-1]), "Grüße 😀")
        self.assertEqual(chunks[-2].choices[0].finish_reason, "stop")
        self.assertEqual(chunks[-1].usage.completion_tokens, len("Grüße 😀".encode()) + 1)
        self.assertEqual(len({c.id for c in chunks}), 1)

    def check_calls(self, calls):
        self.assertEqual([(c.id, c.function.name, json.loads(c.function.arguments)) for c in calls],
                         [("functions.f:0", "f", {"city": "Köln"}), ("functions.g:1", "g", {})])

    def test_tools(self):
        choice = self.chat("ok" + CALLS, tools=TOOLS).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", "ok"))
        self.check_calls(choice.message.tool_calls)

    def test_tools_streamed(self):
        messages = [{"role": "user", "content": CALLS}]
        with self.client.chat.completions.stream(model="ddtree", messages=messages, tools=TOOLS) as stream:
            choice = stream.get_final_completion().choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.check_calls(choice.message.tool_calls)

    def test_one_call_where_they_must_not_be_parallel(self):
        calls = self.chat(CALLS, tools=TOOLS, parallel_tool_calls=False).choices[0].message.tool_calls
        self.assertEqual([c.id for c in calls], ["functions.f:0"])

    def test_results_go_back(self):
        first = self.chat(CALLS, tools=TOOLS).choices[0].message
        messages = [{"role": "user", "content": CALLS}, first] + [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in first.tool_calls] + [{"role": "user", "content": "thanks"}]
        reply = self.client.chat.completions.create(model="ddtree", messages=messages, tools=TOOLS)
        self.assertEqual(reply.choices[0].message.content, "thanks")

    def test_abort(self):
        stream = self.chat("x" * 7000, stream=True)
        next(iter(stream))
        stream.close()
        self.assertEqual(self.chat("still here").choices[0].message.content, "still here")


if __name__ == "__main__":
    unittest.main()
