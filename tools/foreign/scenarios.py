"""What happens to the daemon, one function a scenario; each asserts what it saw."""
import contextlib
import http.client
import json
import re
import secrets
import subprocess
import threading
import time
import urllib.parse
import uuid

from evidence import FAILURES
from wire import API, iso, unb64


def wait(test, seconds, what):
    """Wait for what takes seconds on a busy machine; four times as long on a slow one."""
    seconds *= 4
    end = time.monotonic() + seconds
    while not test():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {seconds} s")
        time.sleep(0.05)


def equal(got, wanted, what):
    assert got == wanted, f"{what}: {got!r}, not {wanted!r}"


def failed_with(job, *codes):
    """The job failed with one of these codes, and with its row of the table."""
    evidence = job.accepted
    equal(evidence["outcome"], "FAILED", "outcome")
    got = tuple(evidence[k] for k in ("failure_code", "failure_stage", "failure_message"))
    wanted = codes[codes.index(got[0])] if got[0] in codes else codes[0]
    equal(got, (wanted, *FAILURES[wanted]), f"failure (summary {evidence['summary'][:300]!r})")


def succeeded(job):
    equal(job.accepted["outcome"], "SUCCEEDED",
          f"outcome ({job.accepted.get('failure_code')}: {job.accepted.get('summary', '')[:400]!r})")


CALC = "def add(a, b):\n    return a - b\n"
TEST = "import unittest\nfrom calc import add\n\n\nclass Sums(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
UNITTEST = {"required_commands": ["python -m unittest discover -s tests -q"]}
SAMPLE = {"calc.py": CALC, "tests/__init__.py": "", "tests/test_calc.py": TEST, "README.md": "# Sample\n"}
MEND = ("edit", "calc.py", "a - b", "a + b")
SHELL_MEND = ("run", "cat calc.py && sed -i 's/a - b/a + b/' calc.py && python3 -c 'import calc; print(calc.add(2, 3))'")
FINISH, DONE = ("finish",), ("say", "The sum is mended.")


def link_of(world, *arguments):
    """What `link` prints: the token of a well-formed link."""
    printed = subprocess.run([world.options.daemon, "link", *arguments, "--state-dir", world.state], env=world.env,
                             capture_output=True, text=True, timeout=120)
    equal(printed.returncode, 0, f"exit of link ({printed.stderr.strip()})")
    equal(len(printed.stdout.splitlines()), 1, "lines of link's output")
    link = urllib.parse.urlsplit(printed.stdout.strip())
    equal((link.scheme, link.netloc, link.query, link.fragment), ("veyra-connect", f"127.0.0.1:{world.port}", "protocol=1", ""), "link")
    return re.fullmatch(r"/connect/([A-Za-z0-9_-]{24,256})", link.path).group(1)


def challenged(world, token, connection=None):
    """The challenge's answer, checked and kept, as a control plane does."""
    plane, challenge = world.plane, secrets.token_urlsafe(32)
    body = {"token": token, "challenge": challenge, "veyra_origin": plane.origin}
    status, raw = world.call("POST", "/veyra/connect/challenge", body, connection)
    equal(status, 200, f"challenge ({raw[:200]})")
    answer = json.loads(raw)
    plane.runtime_id, plane.public_key = answer["runtime_id"], unb64(answer["public_key"])
    assert re.fullmatch(r"runtime-[0-9a-f-]{36}", plane.runtime_id) and len(plane.public_key) == 32, answer
    assert plane.check_signature(answer["signature"], f"veyra-connect-v1:{challenge}:{plane.runtime_id}"), "the challenge's signature"
    equal((answer["challenge"], answer["protocol_version"], answer["provider_ready"]), (challenge, 1, True), f"challenge ({answer.get('provider_message')})")
    worker = world.role == "WORKER"
    equal(answer["capabilities"], {"role": world.role, "coding": worker, "verification": not worker, "testing": True, "git": True,
                                   "repository_access": "job-scoped-write" if worker else "read-only",
                                   "job_transport": "veyra-outbound-heartbeat-v1"}, "capabilities")
    equal((answer["provider"], answer["model"]), ("foreign", world.model.name), "provider and model")
    assert 0 < len(answer["runtime_version"]) <= 64 and len(answer["provider_message"]) <= 240, answer


def claim_of(world, token):
    origin = world.plane.origin
    return {"token": token, "agent_id": world.plane.agent, "agent_name": "Foreign", "runtime_credential": secrets.token_urlsafe(48),
            "heartbeat_url": origin + API + "heartbeat/", "configuration_url": origin + API + "configuration/", "protocol_version": 1}


def connecting(world):
    """Links and refusals: nothing is signed, nothing consumed, floods delay nobody."""
    equal(world.health(), {"ok": True, "protocol_version": 1, "paired": False}, "health")
    old = link_of(world)
    equal(link_of(world), old, "the current link, printed again")
    token = link_of(world, "--rotate")
    assert token != old, "link --rotate gave the same link"
    good = {"token": token, "challenge": secrets.token_urlsafe(32), "veyra_origin": world.plane.origin}
    for change, status in (({"token": old}, 403), ({"token": secrets.token_urlsafe(36)}, 403), ({"veyra_origin": world.trap.origin}, 403),
                           ({"challenge": "short"}, 400), ({"challenge": "!" * 43}, 400), ({"protocol_version": 2}, 400)):
        got, body = world.call("POST", "/veyra/connect/challenge", {**good, **change})
        equal(got, status, f"challenge with {change}")
        assert "signature" not in json.loads(body) and json.loads(body)["detail"], f"answer to {change}: {body[:200]}"
    for _ in range(60):
        status, _ = world.call("POST", "/veyra/connect/challenge", {**good, "token": secrets.token_urlsafe(36)})
        assert status in (403, 429), f"wrong token: {status}"
    with contextlib.suppress(OSError):  # cut off while it is still being sent is fine, too
        status, _ = world.call("POST", "/veyra/connect/challenge", {**good, "padding": "x" * 10_000_000})
        assert 400 <= status < 500, f"a body of 10 MB: {status}"
    challenged(world, token)
    for change in ({"runtime_credential": "short"}, {"agent_id": ""}, {"heartbeat_url": world.trap.origin + API + "heartbeat/"},
                   {"configuration_url": world.plane.origin + "/elsewhere/"}, {"protocol_version": 2}):
        equal(world.call("POST", "/veyra/connect/claim", {**claim_of(world, token), **change})[0], 400, f"claim with {change}")
    for path in ("/metrics", "/readyz", "/", "/veyra/connect/", "/veyra/connect/status"):
        status = world.call("GET", path)[0]
        assert status in (404, 405), f"{path} on the public listener: {status}"


def pairing(world):
    """A claim whose answer was lost, then one that counts: a new link, one connection, early beats."""
    plane, token = world.plane, link_of(world)
    challenged(world, token)
    equal(world.call("POST", "/veyra/connect/claim", claim_of(world, token))[0], 201, "first claim")
    time.sleep(1.5)  # its answer is lost here, so every beat is answered 500
    equal(world.health()["paired"], False, "paired before the first 200")
    token = link_of(world)
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=120)
    challenged(world, token, connection)
    assert connection.sock is not None, "the connection was not kept alive"
    claim = claim_of(world, token)
    status, body = world.call("POST", "/veyra/connect/claim", claim, connection)
    equal((status, json.loads(body)), (201, {"connected": True, "runtime_id": plane.runtime_id, "agent_id": plane.agent}), "claim")
    status, body = world.call("POST", "/veyra/connect/claim", claim)
    assert status == 403 and "used" in json.loads(body)["detail"], f"the token again: {status} {body[:200]}"
    time.sleep(1.2)  # beats meanwhile are answered 500: nothing is stored yet
    plane.credential = claim["runtime_credential"]
    wait(lambda: plane.beats >= 2, 15, "the second heartbeat")
    equal(world.health()["paired"], True, "paired")
    body = {"token": token, "challenge": secrets.token_urlsafe(32), "veyra_origin": plane.origin}
    equal(world.call("POST", "/veyra/connect/challenge", body)[0], 403, "a challenge once paired")


def qualification(world):
    """One attempt: the model's first answer is useless, the second is right."""
    starter = 'def greet(name):\n    return "Bye, " + name\n'
    test = "import unittest\nfrom greeting import greet\n\n\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(greet('é'), 'Hi, é <&>')\n"
    task = {"id": str(uuid.uuid4()), "type": "automatic_qualification", "attempt": 1, "task_version": "v1", "title": "Greeting",
            "instructions": "Change greeting.py so that the test passes.", "qualification_target_path": "greeting.py",
            "starter_files": [{"path": "greeting.py", "content": starter}, {"path": "tests/__init__.py", "content": ""},
                              {"path": "tests/test_greeting.py", "content": test}],
            "allowed_submission_paths": ["greeting.py"], "test_command": "python -m unittest discover -s tests -q",
            "submit_url": world.plane.origin + API + "qualification/submit/", "tokens": set(),
            "answer": 'def greet(name):\n    return "Hi, " + name + " <&>"\n'}
    world.plane.qualification = task
    assert world.plane.qualified.wait(480), f"not qualified; beat {world.plane.beat.get('message')!r}"


def funded(world):
    job = world.job(SAMPLE, [MEND, ("run", "python3 -m unittest discover -s tests"), FINISH], policy=UNITTEST)
    succeeded(job)
    equal(job.accepted["changed_files"], ["calc.py"], "changed files")
    assert job.accepted["baseline_test_return_code"] != 0 and job.accepted["repair_attempts"] == 0, job.accepted
    equal((job.accepted["environment_setup_command"], job.accepted["environment_setup_output"]), ("", ""), "set-up")
    body = world.forge.pulls[job.full_name][0]["body"]
    assert job.accepted["commit_sha"][:7] in body or job.accepted["tree_sha"] in body or "unittest" in body, f"template: {body[:400]}"


def several_commands(world):
    commands = ["python -m unittest discover -s tests -q", "python3 -m pytest -q"]
    succeeded(world.job(SAMPLE, [MEND, FINISH], policy={"required_commands": commands}))


def detected_pytest(world):
    files = {"calc.py": CALC, "tests/test_calc.py": "import sys; sys.path.insert(0, '.')\nfrom calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"}
    job = world.job(files, [SHELL_MEND, DONE, DONE], detected=["python -m pytest -q"])
    succeeded(job)
    equal(job.accepted["validation_toolchain"], "python", "toolchain")


def detected_unittest(world):
    files = {"pyproject.toml": "[project]\nname = 'sample'\nversion = '1'\n", "calc.py": CALC, "test_calc.py": TEST}
    succeeded(world.job(files, [SHELL_MEND, DONE, DONE], detected=["python -m unittest discover -v"]))


def shapes(world):
    """New file, change, deletion, mode change, rename; odd but legal names; an ignored file stays out."""
    files = {**SAMPLE, "old.txt": "".join(f"line {n}\n" for n in range(40)), "gone.txt": "gone\n", "run.sh": "#!/bin/sh\ntrue\n", ".gitignore": "*.log\n"}
    script = [MEND, ("edit", "docs/notes/näme.md", "", "# Notes\n"), ("run", "rm gone.txt && chmod +x run.sh && mv old.txt 'new name.txt' && echo x > noise.log && touch README.md"), FINISH]
    job = world.job(files, script, policy=UNITTEST)
    succeeded(job)
    listed = ["calc.py", "docs/notes/näme.md", "gone.txt", "new name.txt", "run.sh"]
    equal(sorted(job.accepted["changed_files"]), listed, "changed files")
    tree = world.forge.git(world.forge.path(job.full_name), "ls-tree", "-r", job.accepted["commit_sha"], "run.sh")
    equal(tree[:6], "100755", "mode of run.sh")


def odd_output(world):
    """Tests that print what JSON, HTML and databases trip over, and far too much of it."""
    noise = "import sys\nsys.stdout.buffer.write(b'\\x00\\xff\\xed\\xa0\\x80 <&>\\x1b[31m\\xe2\\x80\\xa8\\x7f' + b'\\x01' * 3000000 + 'é'.encode() * 100000)\nsys.stdout.flush()\n"
    files = {**SAMPLE, "tests/test_noise.py": noise + TEST}
    job = world.job(files, [MEND, FINISH], policy=UNITTEST)
    succeeded(job)
    assert "\x1b" not in world.forge.pulls[job.full_name][0]["body"], "an escape sequence in the pull request"


def refused_three_times(world):
    job = world.job(SAMPLE, [MEND, FINISH], policy=UNITTEST, faults=["409", "409", "409"])
    succeeded(job)
    equal((len(job.submissions), len({raw for _, raw in job.submissions})), (4, 1), "submissions, different bodies")
    times = [at for at, _ in job.submissions]
    assert all(b - a > 0.3 for a, b in zip(times, times[1:])), f"no pause between refusals: {times}"


def lost_answer(world):
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST, faults=["drop"])
    world.run(job)
    wait(lambda: len(job.submissions) >= 2, 30, "the second submission")
    succeeded(job)
    equal(len({raw for _, raw in job.submissions}), 1, "different bodies")


def html_500(world):
    job = world.job(SAMPLE, [MEND, FINISH], policy=UNITTEST, faults=["500", "429"])
    succeeded(job)
    equal((len(job.submissions), len({raw for _, raw in job.submissions})), (3, 1), "submissions, different bodies")


def passing_trouble(world):
    """Refused credentials, a git host in trouble, a pull request that lags and whose answer is lost: none of it ends a job."""
    world.forge.lag, world.forge.faults, world.forge.trouble = 1, ["422", "drop"], 1
    job = world.job(SAMPLE, [MEND, FINISH], policy=UNITTEST, credential_faults=[True, True])
    succeeded(job)
    equal(len(world.forge.pulls[job.full_name]), 1, "pull requests")


def forbidden_path(world):
    script = [("run", "mkdir -p Deploy && echo x > Deploy/run.sh && sed -i 's/a - b/a + b/' calc.py"), FINISH]
    job = world.job(SAMPLE, script, policy=UNITTEST)
    failed_with(job, "POLICY_PATH_VIOLATION", "PROTECTED_FILE_CHANGED")  # either sentence is true of it
    equal([p for p in world.forge.pushes if p[0] == job.full_name], [], "pushes")


def deleted_protected(world):
    """GitHub names only the new side of a rename: we alone see the old one."""
    files = {**SAMPLE, "LICENSE": "Some licence text\n" * 20}
    failed_with(world.job(files, [("run", "mv LICENSE COPYING"), FINISH], policy=UNITTEST), "PROTECTED_FILE_CHANGED")


def outside_allowed(world):
    job = world.job(SAMPLE, [("run", "echo more >> README.md"), FINISH], policy={**UNITTEST, "allowed_paths": ["calc.py", "tests/**"]})
    failed_with(job, "POLICY_PATH_VIOLATION")


def new_dependency(world):
    failed_with(world.job(SAMPLE, [("run", "echo requests > requirements.txt"), FINISH], policy=UNITTEST), "PROTECTED_FILE_CHANGED")


def migration(world):
    script = [("run", "mkdir -p app/migrations && echo x > app/migrations/0001.py"), FINISH]
    failed_with(world.job(SAMPLE, script, policy=UNITTEST), "PROTECTED_FILE_CHANGED")


def symlink(world):
    failed_with(world.job(SAMPLE, [("run", "ln -s /etc/passwd users"), FINISH], policy=UNITTEST), "CHANGE_UNSUPPORTED")


def unsupported(command, code="CHANGE_UNSUPPORTED"):
    """A scenario whose change can't be delivered: it fails before any push."""
    def scenario(world):
        job = world.job(SAMPLE, [("run", command), FINISH], policy=UNITTEST)
        failed_with(job, code)
        equal([p for p in world.forge.pushes if p[0] == job.full_name], [], "pushes")
    return scenario


def secret_in_change(world):
    job = world.job(SAMPLE, [MEND, ("run", f"echo 'key = {world.model.key}' > notes.txt"), FINISH], policy=UNITTEST)
    failed_with(job, "SECRETS_FOUND")
    equal([p for p in world.forge.pushes if p[0] == job.full_name], [], "pushes")


def seen_from_inside(world):
    """A test that looks for power, secrets and a network, and prints what it finds."""
    port = urllib.parse.urlsplit(world.plane.origin).port
    test = f"""import glob, os, re, socket, unittest


class Inside(unittest.TestCase):
    def test_powers(self):
        status = open('/proc/self/status').read()
        self.assertEqual({{int(x, 16) for x in re.findall(r'Cap\\w+:\\s+(\\w+)', status)}}, {{0}})
        self.assertRegex(status, r'NoNewPrivs:\\s+1')
        self.assertNotEqual(os.getuid(), 0)

    def test_secrets(self):
        for name in glob.glob('/proc/[0-9]*/environ'):
            try:
                print(open(name, 'rb').read())
            except OSError:
                pass
        self.assertFalse([k for k in os.environ if k.startswith(('AI_', 'VEYRA_', 'RUNTIME_', 'GITHUB_'))])

    def test_network(self):
        with self.assertRaises(OSError):
            socket.create_connection(('127.0.0.1', {port}), 2)
        self.assertEqual([n for _, n in socket.if_nameindex() if n != 'lo'], [])

    def test_host(self):
        self.assertNotIn('foreign-world', open('/proc/self/mountinfo').read())
        self.assertFalse(os.path.exists('{world.root}'))
"""
    succeeded(world.job({**SAMPLE, "tests/test_inside.py": test}, [MEND, FINISH], policy=UNITTEST))


def no_tests(world):
    """Python's discovery ends 0 without a test: detected, that is no success."""
    files = {"pyproject.toml": "[project]\nname = 'sample'\nversion = '1'\n", "calc.py": CALC}
    failed_with(world.job(files, [MEND, FINISH]), "NO_TESTS_RUN")


def other_case(world):
    """A redirect to the same repository in other letters is followed."""
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST)
    world.forge.moved[job.full_name] = job.full_name.title()
    world.run(job)
    succeeded(job)


def outage(world):
    """Slow: the model is away, the daemon says so without losing a beat, and comes back."""
    world.model.down, ready = True, lambda: world.plane.beat["health"] == "HEALTHY" and world.plane.beat["provider_ready"]
    wait(lambda: not ready(), 90, "an unhealthy beat")
    assert world.plane.beat["message"], "an unhealthy beat without a sentence"
    world.model.down = False
    wait(ready, 90, "a healthy beat")
    succeeded(world.job(SAMPLE, [MEND, FINISH], policy=UNITTEST))


def repair(world):
    job = world.job(SAMPLE, [("edit", "calc.py", "a - b", "a * b"), FINISH, ("edit", "calc.py", "a * b", "a + b"), FINISH], policy=UNITTEST)
    succeeded(job)
    equal(job.accepted["repair_attempts"], 1, "repair attempts")


def never_repaired(world):
    job = world.job(SAMPLE, [("run", "echo '# more' >> calc.py"), FINISH], policy=UNITTEST)
    failed_with(job, "TESTS_FAILED_AFTER_REPAIR")
    equal(world.forge.pulls.get(job.full_name, []), [], "pull requests")


def empty_then_good(world):
    """An empty change is given out again: new lease, new branch, and then it works."""
    job = world.job(SAMPLE, [FINISH, FINISH, FINISH, FINISH], policy=UNITTEST, faults=[])
    equal(job.accepted["failure_code"], "EMPTY_DIFF", "code of the last attempt")
    equal((job.attempt, len(job.failures)), (4, 3), "attempts, repeated failures")
    job = world.make(SAMPLE, [FINISH, FINISH], policy=UNITTEST)
    world.deliver(job)
    wait(lambda: job.failures or job.done.is_set(), 60, "the first failure")
    failure = job.failures[0]
    equal((failure["failure_code"], (failure["failure_stage"], failure["failure_message"])), ("EMPTY_DIFF", FAILURES["EMPTY_DIFF"]), "first failure")
    job.script, job.cursor = [MEND, FINISH], 0
    assert job.done.wait(360), "the second attempt did not end"
    succeeded(job)
    equal((job.attempt, job.accepted["branch"][-2:]), (2, "-2"), "attempt and branch")


def requirements(world):
    job = world.job({**SAMPLE, "requirements.txt": "left-pad-example==1.0\n"}, [MEND, FINISH], detected=["python -m pytest -q"])
    failed_with(job, "DEPENDENCY_PREPARATION_FAILED")
    equal(job.cursor, 0, "model calls")


def no_toolchain(world):
    failed_with(world.job({"README.md": "# Nothing\n"}, [FINISH]), "UNSUPPORTED_TOOLCHAIN")


def taskwise(change, code, credentials=0, **policy):
    """A scenario whose ill-formed task ends in a signed failure before any work."""
    def scenario(world):
        job = world.job(SAMPLE, [MEND, FINISH], policy={**UNITTEST, **policy}, change=(lambda task: change(task, world)))
        failed_with(job, code)
        equal((world.trap.hits, job.credentials, job.cursor), (0, credentials, 0), "foreign connections, credentials asked, model calls")
    return scenario


def unanswerable(change):
    """A scenario whose task gives nobody to answer to: nothing may be sent for it."""
    def scenario(world):
        job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST, change=lambda task: change(task, world))
        world.deliver(job)
        wait(lambda: job.beats >= 4, 30, "four deliveries")
        world.deliver(None)
        equal((world.trap.hits, job.credentials, job.cursor, len(job.submissions)), (0, 0, 0, 0), "foreign connections, credentials, model calls, results")
    return scenario


def put(*keys):
    """put('a', 'b', value)(task): set one field of a task; a callable gets the world."""
    *path, last, value = keys

    def change(task, world):
        for key in path:
            task = task[key]
        task[last] = value(world) if callable(value) else value
    return change


def foreign_credential(world):
    failed_with(world.job(SAMPLE, [MEND, FINISH], policy=UNITTEST, credential={"repository": "example/other"}), "CREDENTIAL_REFUSED")


def moved(world):
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST)
    world.forge.moved[job.full_name] = "example/elsewhere"
    world.run(job)
    failed_with(job, "REPOSITORY_MOVED")


def diverged(world):
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST)
    repository = world.forge.path(job.full_name)
    other = world.forge.git(repository, "commit-tree", "main^{tree}", "-p", "main", "-m", "Other")
    world.forge.git(repository, "update-ref", "refs/heads/" + job.leases[job.lease_id][1], other)
    world.run(job)
    failed_with(job, "REMOTE_DIVERGED")
    equal(world.forge.head(job.full_name, job.leases[job.lease_id][1]), other, "the branch")


def new_lease_fences(world):
    """A newer lease while the model thinks: the old run ends, and only the new one answers."""
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST)
    job.hold = threading.Event()
    world.deliver(job)
    assert job.held.wait(240), "the model was not asked"
    with world.plane.lock:
        job.lease()
        hold, job.hold, job.cursor, beats = job.hold, None, 0, job.beats
    wait(lambda: job.beats >= beats + 2, 20, "two beats")
    hold.set()
    assert job.done.wait(360), "the new lease's run did not end"
    succeeded(job)
    equal((job.accepted["lease_id"], len(job.submissions)), (job.lease_id, 1), "lease, submissions")


def restart(world):
    """Start the daemon again once the killed one is gone."""
    world.daemon.wait(80)
    world.plane.last_beat = 0.0
    world.start()


def killed_at_work(world):
    """kill -9 while the model thinks: the job is done anew, once."""
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST)
    job.hold = threading.Event()
    world.deliver(job)
    assert job.held.wait(240), "the model was not asked"
    hold, job.hold = job.hold, None
    world.daemon.kill()
    hold.set()
    restart(world)
    assert job.done.wait(480), "the restarted daemon did not end the job"
    succeeded(job)
    equal((len(job.submissions), len(world.forge.pulls[job.full_name])), (1, 1), "submissions, pull requests")


def killed_delivering(fault):
    """A scenario that kills the daemon as its result arrives: the same bytes come again."""
    def scenario(world):
        job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST, faults=[fault])
        world.deliver(job)
        wait(lambda: job.submissions, 60, "the first submission")
        restart(world)
        wait(lambda: len(job.submissions) >= 2 and job.done.is_set(), 90, "the second submission")
        succeeded(job)
        equal(len({raw for _, raw in job.submissions}), 1, "different bodies")
    return scenario


def disconnect(world):
    """Slow: 401 for over 30 s makes links possible again; the same agent may pair anew."""
    world.plane.revoked = True
    time.sleep(40)
    printed = subprocess.run([world.options.daemon, "link", "--state-dir", world.state], env=world.env, capture_output=True, text=True, timeout=120)
    equal(printed.returncode, 0, f"exit of link after a lasting 401 ({printed.stderr.strip()})")
    world.plane.last_beat = 0.0  # refused beats were not seen as such
    world.plane.revoked, beats = False, world.plane.beats
    wait(lambda: world.plane.beats > beats, 40, "a heartbeat after the 401s")
    succeeded(world.job(SAMPLE, [MEND, FINISH], policy=UNITTEST))


def ending(world):
    """Probes and metrics, then SIGTERM in a job: it is delivered, exit 0, no secret in any log."""
    equal(world.call("GET", "/readyz", port=world.admin)[0], 200, "readyz")
    status, metrics = world.call("GET", "/metrics", port=world.admin)
    assert status == 200 and re.search(rb"(?m)^veyra_sandboxd_paired 1$", metrics), f"metrics: {status}"
    again = subprocess.run([world.options.daemon, "link", "--state-dir", world.state], env=world.env, capture_output=True, text=True, timeout=120)
    equal((again.returncode, again.stdout), (3, ""), "link once paired")
    job = world.make(SAMPLE, [MEND, FINISH], policy=UNITTEST)
    world.deliver(job)
    wait(lambda: job.cursor > 0, 60, "the model's first answer")
    equal(world.stop(), 0, "exit status after SIGTERM in the middle of a job")
    assert job.accepted, "draining did not deliver the running job"
    succeeded(job)
    with open(world.log_path, encoding="utf-8", errors="replace") as file:
        log = file.read()
    assert not [s for s in world.secrets() if s in log], "a secret in the daemon's log"
    equal(world.trap.hits, 0, "connections to foreign addresses")


def elsewhere(world):
    return world.trap.origin + API + "job/result/"


SLOW = (outage, disconnect)
SCENARIOS = [
    ("connecting", connecting), ("pairing", pairing), ("qualification", qualification), ("funded command", funded), ("several commands", several_commands),
    ("detected pytest, shell only", detected_pytest), ("detected unittest, shell only", detected_unittest),
    ("new, changed, deleted, mode, renamed", shapes), ("odd output", odd_output), ("result refused three times", refused_three_times),
    ("result's answer lost", lost_answer), ("result answered 500 with HTML", html_500), ("passing trouble around the work", passing_trouble),
    ("forbidden path", forbidden_path), ("protected file renamed away", deleted_protected), ("outside the allowed paths", outside_allowed),
    ("new dependency", new_dependency), ("migration", migration), ("symlink", symlink),
    ("names that differ in case only", unsupported("echo a > Notes.txt; echo b > notes.txt")),
    ("name with a backslash", unsupported("echo a > 'a\\b.txt'")), ("name that ends in a space", unsupported("echo a > 'a.txt '")),
    ("FIFO", unsupported("mkfifo pipe")), ("too many files", unsupported("for n in $(seq 950); do echo $n > f$n.txt; done", "CHANGE_TOO_LARGE")),
    ("secret in the change", secret_in_change), ("seen from inside", seen_from_inside), ("no tests", no_tests),
    ("same repository in other letters", other_case),
    ("failing tests, then repaired", repair),
    ("never repaired", never_repaired), ("empty change, given out again", empty_then_good), ("requirements", requirements),
    ("no toolchain", no_toolchain),
    ("submit_url of another host", taskwise(put("submit_url", elsewhere), "TASK_INVALID")),
    ("credential_url of another host", taskwise(put("credential_url", elsewhere), "TASK_INVALID")),
    ("submit_url without its slash", taskwise(put("submit_url", lambda w: w.plane.origin + API + "job/result"), "TASK_INVALID")),
    ("clone_url of another host", taskwise(put("repository", "clone_url", lambda w: w.trap.origin + "/example/x.git"), "TASK_INVALID")),
    ("branch is the base", taskwise(put("delivery", "branch", "main"), "TASK_INVALID")),
    ("no minutes", taskwise(put("policy", "maximum_execution_minutes", 0), "TASK_INVALID")),
    ("five commands", taskwise(put("policy", "required_commands", ["python -m pytest"] * 5), "TASK_INVALID")),
    ("command with an operator", taskwise(put("policy", "required_commands", ["pytest; id"]), "UNSAFE_VALIDATION_COMMAND")),
    ("target branch missing", taskwise(put("repository", "target_branch", "release"), "BRANCH_MISSING", 1)),
    ("lease that is over", unanswerable(put("lease_expires_at", lambda w: iso(-5)))),
    ("lease id that is no UUID", unanswerable(put("lease_id", "../../etc"))),
    ("credential for another repository", foreign_credential), ("repository renamed", moved), ("leased branch taken", diverged),
    ("newer lease fences the old run", new_lease_fences),
    ("killed at work", killed_at_work), ("killed before the result is stored", killed_delivering("kill")),
    ("killed after the result is stored", killed_delivering("kill after")), ("model away", outage), ("disconnected", disconnect), ("ending", ending)]
