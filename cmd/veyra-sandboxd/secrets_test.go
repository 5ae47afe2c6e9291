package main_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
)

// probe is a test that prints all it can reach, and leaves a process behind
// that goes on printing.
const probe = `import glob, os, socket, subprocess, sys, unittest

def show(path):
    try:
        with open(path, "rb") as f:
            print(path, f.read(2000))
    except OSError as e:
        print(path, e.strerror)

def reach(name, family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(0.5)
            s.connect(address)
        print("NET", name, "CONNECTED")
    except OSError as e:
        print("NET", name, "failed", e)

class Probe(unittest.TestCase):
    def test_look_around(self):
        print("ENV", dict(os.environ))
        for line in open("/proc/self/status"):
            if line.startswith("Cap"):
                print("STATUS", " ".join(line.split()))
        for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
            show(path)
        for path in ["/etc/shadow", "/etc/hostname", "/etc/resolv.conf", "/proc/1/mem", "/proc/1/root/etc/shadow"]:
            show(path)
        for path in ["/", "/run", "/.veyra", "/tmp", os.environ["HOME"], "/var/cache", "/dev"]:
            try:
                print(path, sorted(os.listdir(path)))
            except OSError as e:
                print(path, e.strerror)
        host, port = open("address").read().strip().rsplit(":", 1)
        reach("host", socket.AF_INET, (host, int(port)))
        reach("internet", socket.AF_INET, ("192.0.2.1", 443))
        reach("control socket", socket.AF_UNIX, "/run/veyra-sandboxd/control.sock")
        subprocess.Popen([sys.executable, "-c", "while True:\n  print('FORGED', flush=True)\n  __import__('time').sleep(0.01)"], start_new_session=True)
`

// TestNoSecretAnywhere lets hostile tests and a hostile model look for secrets,
// and then searches everything that leaves the daemon (attack cases G01–G12).
func TestNoSecretAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	w.key += `/+&<"` // so that encodings differ
	w.model.Key = w.key
	d := w.start(w.newPlace())
	_, link := d.pair(w)
	second := "python -m unittest tests.test_calc"
	files := with(map[string]string{
		"probes/__init__.py": "", "probes/test_probe.py": probe, "address": strings.TrimPrefix(w.origin, "http://") + "\n",
	})
	id := w.job("probed", "Make add add", files, func(s *controlplanetest.JobSpec) {
		s.RequiredCommands = []string{"python -m unittest discover -s probes", second}
	},
		fix(),
		providertest.Step{Shell: "env; cat /proc/*/environ; echo the key is " + base64.StdEncoding.EncodeToString([]byte(w.key))},
		providertest.Step{Finish: "Fixed with " + w.key + " and " + url.QueryEscape(w.key)})
	j := w.accepted(id)

	output := fmt.Sprint(j.Evidence["test_output"])
	wantProbed(t, output, second)
	secrets := w.secrets(t, link)
	_, metrics := get(t, "http://"+d.admin+"/metrics")
	evidence, err := json.Marshal(j.Evidence)
	if err != nil {
		t.Fatal(err)
	}
	pull, err := w.git.Git("acme", "probed", "log", "-p", "--all", "--format=%an %ae %B")
	if err != nil {
		t.Fatal(err)
	}
	leaving := map[string]string{
		"evidence": string(evidence), "metrics": metrics, "pushed commits": pull,
		"beats":  strings.Join(w.sent(controlplanetest.Heartbeat), "\n"),
		"status": d.tell("status", "--json").out, "jobs": d.tell("jobs", "list", "--json").out,
		"job log": d.tell("jobs", "logs", j.AssignmentID).want(t, 0).out,
	}
	for i, request := range w.model.Requests() {
		// What the model said itself comes back to it as history.
		if request.Turn == 0 {
			leaving[fmt.Sprintf("model request %d", i)] = string(request.Body)
		}
	}
	for _, p := range family(d.cmd.Process.Pid) {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		leaving[fmt.Sprintf("command line of %v", p)] = strings.Join(p.command, " ")
		leaving[fmt.Sprintf("environment of %v", p)] = string(environ)
	}
	d.stop()
	leaving["log"] = d.text()
	for place, text := range leaving {
		for name, secret := range secrets {
			wantAbsent(t, place, text, name, secret)
		}
	}
	wantSecretsAtHome(t, d.state, secrets)
}

// wantProbed checks that the probe saw a sandbox, and that what it left behind
// wrote nothing into the next command's output.
func wantProbed(t *testing.T, output, second string) {
	t.Helper()
	first, next, found := strings.Cut(output, "$ "+second)
	if !found || strings.Contains(next, "FORGED") || !strings.Contains(next, "OK") {
		t.Errorf("the second command's output: %q", next)
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(first, "STATUS "+set+": 0000000000000000") {
			t.Errorf("%s is not shown as empty", set)
		}
	}
	if strings.Contains(first, "CONNECTED") || strings.Count(first, "NET ") != 3 {
		t.Errorf("network attempts did not all fail")
	}
	if t.Failed() {
		t.Log(output)
	}
}

// secrets are all that this world has given out, by name.
func (w *world) secrets(t *testing.T, link string) map[string]string {
	t.Helper()
	all := map[string]string{"provider key": w.key, "pairing token": strings.TrimSuffix(link[strings.LastIndex(link, "/")+1:], "?protocol=1")}
	w.mu.Lock()
	for i, token := range w.tokens {
		all[fmt.Sprintf("repository token %d", i)] = token
	}
	for bearer := range w.bearers {
		all["runtime credential"] = bearer
	}
	w.mu.Unlock()
	for i, body := range append(w.sent(controlplanetest.JobCredential), w.sent(controlplanetest.JobResult)...) {
		var sent struct {
			Token string `json:"lease_token"`
		}
		if err := json.Unmarshal([]byte(body), &sent); err != nil || sent.Token == "" {
			t.Fatalf("no lease token in %s: %v", body, err)
		}
		all[fmt.Sprintf("lease token %d", i)] = sent.Token
	}
	if len(all) < 5 {
		t.Fatalf("too few secrets: %v", keys(all))
	}
	return all
}

// forms are the encodings that a secret is searched in: as it is, base64 at its
// three offsets, hex, URL and JSON.
func forms(secret string) map[string]string {
	found := map[string]string{
		"raw": secret, "hex": hex.EncodeToString([]byte(secret)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(secret))),
		"query": url.QueryEscape(secret), "path": url.PathEscape(secret),
	}
	text, _ := json.Marshal(secret)
	found["json"] = strings.Trim(string(text), `"`)
	for offset := range 3 {
		for name, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			whole := encoding.EncodeToString(append(make([]byte, offset), secret...))
			// The first and last characters hold neighbours' bits.
			found[fmt.Sprint(name, offset)] = whole[4 : len(whole)-2]
		}
	}
	return found
}

func wantAbsent(t *testing.T, place, text, name, secret string) {
	t.Helper()
	for form, value := range forms(secret) {
		if at := strings.Index(text, value); at >= 0 {
			t.Errorf("the %s stands in the %s (%s): …%q…", name, place, form, text[max(0, at-60):min(len(text), at+len(value)+10)])
			return
		}
	}
}

// wantSecretsAtHome: on disk the key and repository tokens are nowhere, the
// others only in the supervisor's own files.
func wantSecretsAtHome(t *testing.T, state string, secrets map[string]string) {
	t.Helper()
	err := filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text := readFile(t, path)
		for name, secret := range secrets {
			home := strings.HasPrefix(name, "lease") && strings.Contains(path, "/journal/") ||
				name == "runtime credential" && strings.Contains(path, "/identity/binding/")
			if !home {
				wantAbsent(t, "file "+strings.TrimPrefix(path, state), text, name, secret)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
