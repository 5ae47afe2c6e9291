"""The git host: bare repositories behind `git http-backend`, and pull requests over REST."""
import base64
import gzip
import json
import os
import re
import shutil
import subprocess
import threading

from web import Dropped, Refusal, Server


class Forge:
    """Bare repositories behind smart HTTP, and the REST part a runtime uses."""

    def __init__(self, world, root):
        self.world, self.root = world, root
        self.tokens, self.pulls, self.moved, self.known = {}, {}, {}, {}
        self.pushes, self.faults, self.receive_packs, self.reads = [], [], 0, 0
        self.lag = 0  # how many reads of a pull request show an old head
        self.trouble = 0  # how many git requests are answered 503
        self.lock = threading.RLock()
        self.git_server = Server(world, self.serve_git)
        self.rest_server = Server(world, self.serve_rest)
        self.origin, self.api = self.git_server.origin, self.rest_server.origin + "/api/v3"
        home = os.path.join(root, "home")
        os.makedirs(home)
        self.env = {"PATH": os.environ["PATH"], "HOME": home, "GIT_CONFIG_NOSYSTEM": "1",
                    "GIT_AUTHOR_NAME": "Example", "GIT_AUTHOR_EMAIL": "example@example.invalid",
                    "GIT_COMMITTER_NAME": "Example", "GIT_COMMITTER_EMAIL": "example@example.invalid"}

    def git(self, directory, *arguments):
        done = subprocess.run(["git", "-c", "init.defaultBranch=main", *arguments], cwd=directory, env=self.env,
                              capture_output=True, check=True)
        return done.stdout.decode().strip()

    def path(self, full_name):
        return os.path.join(self.root, full_name + ".git")

    def seed(self, full_name, files):
        work = os.path.join(self.root, "seed-" + full_name.replace("/", "-"))
        for name, content in files.items():
            target = os.path.join(work, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as file:
                file.write(content)
        self.git(work, "init", "-q")
        self.git(work, "add", "-A")
        self.git(work, "commit", "-q", "-m", "Begin")
        self.git(self.root, "clone", "-q", "--bare", work, self.path(full_name))
        for key in ("http.receivepack", "uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
            self.git(self.path(full_name), "config", key, "true")
        shutil.rmtree(work)
        self.known[full_name.casefold()] = full_name

    def commit(self, full_name, branch, files, onto="main", message="Mend the sums"):
        """A commit on a branch of its own: the texts that change; None deletes, a name renames."""
        work = os.path.join(self.root, "work-" + full_name.replace("/", "-"))
        self.git(self.root, "clone", "-q", "-b", onto, self.path(full_name), work)
        self.git(work, "checkout", "-q", "-B", branch)
        for name, content in files.items():
            target = os.path.join(work, name)
            if content is None:
                os.remove(target)
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as file:
                file.write(content)
        self.git(work, "add", "-A")
        self.git(work, "commit", "-q", "-m", message)
        self.git(work, "push", "-q", "-f", "origin", branch)
        shutil.rmtree(work)
        return self.head(full_name, branch)

    def propose(self, full_name, branch, title):
        """The pull request of a branch, with the ref that hosts keep for its head."""
        pull = {"number": 1, "head": branch, "base": "main", "state": "open", "title": title, "body": ""}
        self.pulls[full_name] = [pull]
        self.show_head(full_name, self.head(full_name, branch))
        return [row["filename"] for row in self.files(full_name, pull)]

    def show_head(self, full_name, commit):
        self.git(self.path(full_name), "update-ref", "refs/pull/1/head", commit)

    def head(self, full_name, branch):
        try:
            return self.git(self.path(full_name), "rev-parse", "--verify", "-q", f"refs/heads/{branch}^{{commit}}")
        except subprocess.CalledProcessError:
            return ""

    def serve_git(self, exchange):
        match = re.fullmatch(r"/([\w.-]+/[\w.-]+)\.git(/info/refs|/git-upload-pack|/git-receive-pack)", exchange.route)
        if not match:
            raise Refusal(404, "not found")
        asked, tail = match.groups()
        full_name = self.known.get(asked.casefold(), asked)
        self.note_direction(exchange)
        scheme, _, value = exchange.headers.get("Authorization", "").partition(" ")
        user, _, token = base64.b64decode(value).decode().partition(":") if scheme == "Basic" else ("", "", "")
        if user != "x-access-token" or self.tokens.get(token) != full_name:
            raise Refusal(401, "no access", {"WWW-Authenticate": 'Basic realm="git"'})
        if self.trouble > 0:
            self.trouble -= 1
            raise Refusal(503, "unicorn")
        if asked in self.moved:
            target = f"{self.origin}/{self.moved[asked]}.git{tail}?{exchange.query_text}"
            raise Refusal(301, "", {"Location": target})
        if tail == "/git-receive-pack":
            self.note_push(full_name, exchange)
        return self.backend(exchange, f"/{full_name}.git{tail}")

    def note_direction(self, exchange):
        """A verifier reads: it may not even ask what it could push, whatever its credential allows."""
        if "receive-pack" not in exchange.path:
            self.reads += 1
            return
        self.receive_packs += 1
        if self.world.role == "VERIFIER":
            self.world.violation(f"{exchange.command} {exchange.path} by a verifier")

    def note_push(self, full_name, exchange):
        """Record the push's command list: exactly one created branch is right."""
        body, at, commands = exchange.body, 0, []
        if exchange.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        while (size := int(body[at:at + 4], 16)) > 4:
            old, new, ref = body[at + 4:at + size].split(b"\0")[0].decode().strip().split(" ", 2)
            commands.append((old, new, ref))
            at += size
        with self.lock:
            self.pushes.append((full_name, commands))
        if len(commands) != 1 or commands[0][0] != "0" * 40:
            self.world.violation(f"push of {commands}: not one created branch")

    def backend(self, exchange, path):
        env = {**self.env, "GIT_PROJECT_ROOT": self.root, "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path,
               "REQUEST_METHOD": exchange.command, "QUERY_STRING": exchange.query_text, "REMOTE_USER": "x-access-token",
               "REMOTE_ADDR": "127.0.0.1", "CONTENT_TYPE": exchange.headers.get("Content-Type", ""),
               "CONTENT_LENGTH": str(len(exchange.body)), "GIT_PROTOCOL": exchange.headers.get("Git-Protocol", ""),
               "HTTP_CONTENT_ENCODING": exchange.headers.get("Content-Encoding", "")}
        done = subprocess.run(["git", "http-backend"], input=exchange.body, env=env, capture_output=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        return int(headers.pop("Status", "200").split()[0]), body, headers

    def serve_rest(self, exchange):
        if not exchange.headers.get("User-Agent"):
            raise Refusal(403, {"message": "a User-Agent is required"})
        for name, value in (("Accept", "application/vnd.github+json"), ("X-GitHub-Api-Version", "2022-11-28")):
            if exchange.headers.get(name) != value:
                self.world.violation(f"REST without {name}: {value}")
        match = re.fullmatch(r"/api/v3/repos/([\w.-]+)/([\w.-]+)/pulls(?:/(\d+)(/files)?)?", exchange.route)
        if not match:
            raise Refusal(404, {"message": "Not Found"})
        owner, name, number, files = match.groups()
        full_name = self.known.get(f"{owner}/{name}".casefold(), f"{owner}/{name}")
        token = exchange.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens.get(token) != full_name:
            raise Refusal(401, {"message": "Bad credentials"})
        if self.world.role == "VERIFIER" and exchange.command != "GET":
            self.world.violation(f"{exchange.command} {exchange.route} by a verifier")
        with self.lock:
            pulls = self.pulls.setdefault(full_name, [])
            if number is None and exchange.command == "POST":
                return self.open_pull(owner, full_name, pulls, exchange)
            if exchange.command != "GET":
                self.world.violation(f"{exchange.command} {exchange.route}: not expected")
                raise Refusal(404, {"message": "Not Found"})
            if number is None:
                wanted = exchange.query
                found = [self.show(full_name, pull) for pull in pulls
                         if wanted.get("state", "open") in (pull["state"], "all")
                         and wanted.get("head", f"{owner}:{pull['head']}") == f"{owner}:{pull['head']}"
                         and wanted.get("base", pull["base"]) == pull["base"]]
                return self.page(exchange, found)
            if not 0 < int(number) <= len(pulls):
                raise Refusal(404, {"message": "Not Found"})
            pull = pulls[int(number) - 1]
            return self.page(exchange, self.files(full_name, pull)) if files else (200, self.show(full_name, pull, True), {})

    def open_pull(self, owner, full_name, pulls, exchange):
        wanted = json.loads(exchange.body)
        head, base = wanted["head"].removeprefix(owner + ":"), wanted["base"]

        def refuse(text, **more):
            raise Refusal(422, {"message": "Validation Failed", "errors": [{"resource": "PullRequest", "message": text, **more}]})
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "422":
            refuse("head is not visible yet")
        if not self.head(full_name, head) or not self.head(full_name, base):
            refuse("head or base is invalid", field="head", code="invalid")
        if self.head(full_name, head) == self.head(full_name, base):
            refuse(f"No commits between {base} and {head}", code="custom")
        if any(p["head"] == head and p["base"] == base and p["state"] == "open" for p in pulls):
            refuse(f"A pull request already exists for {owner}:{head}.", code="custom")
        if not 0 < len(wanted["title"]) <= 240 or len(wanted.get("body", "")) > 60_000:
            self.world.violation("pull request title or body outside its limits")
        pull = {"number": len(pulls) + 1, "head": head, "base": base, "state": "open",
                "title": wanted["title"], "body": wanted.get("body", "")}
        pulls.append(pull)
        if fault == "drop":
            raise Dropped()
        return 201, self.show(full_name, pull), {}

    def show(self, full_name, pull, single=False):
        sha = self.head(full_name, pull["head"])
        if single and self.lag > 0:
            self.lag, sha = self.lag - 1, self.head(full_name, pull["base"])
        owner = full_name.split("/")[0]
        side = {"repo": {"full_name": full_name, "id": 7, "private": True}, "user": {"login": owner}}
        return {"number": pull["number"], "html_url": f"{self.origin}/{full_name}/pull/{pull['number']}",
                "state": pull["state"], "merged": False, "draft": False, "title": pull["title"], "body": pull["body"],
                "head": {"ref": pull["head"], "sha": sha, "label": f"{owner}:{pull['head']}", **side},
                "base": {"ref": pull["base"], "sha": self.head(full_name, pull["base"]), "label": f"{owner}:{pull['base']}", **side}}

    def files(self, full_name, pull):
        text = self.git(self.path(full_name), "diff", "-M", "-z", "--name-status", f"{pull['base']}...{pull['head']}")
        fields, listed = iter(text.split("\0")), []
        for status in fields:
            if not status:
                break
            if status[0] == "R":
                previous, name = next(fields), next(fields)
                listed.append({"filename": name, "previous_filename": previous, "status": "renamed"})
            else:
                word = {"A": "added", "D": "removed"}.get(status[0], "modified")
                listed.append({"filename": next(fields), "status": word})
        return [{"sha": "0" * 40, "additions": 1, "deletions": 1, "changes": 2, **row} for row in listed]

    def page(self, exchange, rows):
        size = max(1, min(100, int(exchange.query.get("per_page", 30))))
        page = int(exchange.query.get("page", 1))
        headers = {}
        if len(rows) > size * page:  # a link that must not be followed blindly
            headers["Link"] = f'<{self.world.trap.origin}/next>; rel="next"'
        return 200, rows[size * (page - 1):size * page], headers
