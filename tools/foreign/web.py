"""A small HTTP server whose faults can be chosen, and a trap for calls that must not come."""
import contextlib
import http.client
import http.server
import json
import socket
import threading
import traceback
import urllib.parse
import uuid


class Refusal(Exception):
    """An answer other than 200; a text body is HTML, anything else JSON."""

    def __init__(self, status, body, headers=None):
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


class Dropped(Exception):
    """Close the connection instead of answering."""


def html(status, title):
    return Refusal(status, f"<!doctype html><html><title>{title}</title><body>{'<p>trace</p>' * 2000}</body></html>")


class Exchange(http.server.BaseHTTPRequestHandler):
    """One HTTP exchange; the server's `app(exchange)` gives the answer."""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def read_body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self):
        self.body = self.read_body()
        split = urllib.parse.urlsplit(self.path)
        self.route, self.query = split.path, dict(urllib.parse.parse_qsl(split.query))
        self.query_text = split.query
        try:
            status, body, headers = self.server.app(self)
        except Refusal as refusal:
            status, body, headers = refusal.status, refusal.body, refusal.headers
        except Dropped:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        except Exception:  # a fault of this script must be seen, not guessed
            self.server.world.violation("internal fault: " + traceback.format_exc())
            status, body, headers = 500, "<html>fault</html>", {}
        self.reply(status, body, headers)

    def reply(self, status, body, headers):
        kind = "application/json"
        if isinstance(body, str):
            body, kind = body.encode(), "text/html; charset=utf-8"
        elif not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": kind, "X-Request-ID": str(uuid.uuid4()), "Content-Length": len(body), **headers}
        head = f"HTTP/1.1 {status} {http.client.responses.get(status, '')}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        try:
            self.wfile.write(head.encode() + b"\r\n" + body)
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, world, app):
        super().__init__(("127.0.0.1", 0), Exchange)
        self.world, self.app = world, app
        self.origin = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # connections that the daemon cuts are normal


class Trap:
    """A listener that no daemon may ever reach; it counts who does."""

    def __init__(self):
        self.hits = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                self.hits += 1
                connection.close()
