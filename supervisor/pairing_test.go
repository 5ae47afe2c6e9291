package supervisor_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

func TestChallengeProvesTheIdentity(t *testing.T) {
	d := newDoor(t)
	status, got := d.challenge(d.token(false))
	if status != 200 {
		t.Fatalf("challenge: %d %v", status, got)
	}
	signature, err := base64.RawURLEncoding.DecodeString(got["signature"].(string))
	text := "veyra-connect-v1:" + goodQuestion + ":runtime-" + someID
	if err != nil || !ed25519.Verify(d.key.Public().(ed25519.PublicKey), []byte(text), signature) {
		t.Errorf("the signature does not fit: %v", got)
	}
	capabilities := got["capabilities"].(map[string]any)
	if got["protocol_version"] != 1.0 || got["provider_ready"] != true || capabilities["repository_access"] != "job-scoped-write" {
		t.Errorf("reply %v", got)
	}
}

func TestH01TokensAreUsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t)
		first := d.token(false)
		if again := d.token(false); again != first {
			t.Error("a link that works is not shown again")
		}
		second := d.token(true)
		status, body := d.challenge(first)
		d.want("a revoked token", 403, status, body, "revoked")
		status, body = d.claim(second)
		d.want("the claim", 201, status, body, "")
		status, body = d.claim(second)
		d.want("the same claim again", 403, status, body, "already used")
		status, body = d.challenge(second)
		d.want("a challenge after the claim", 403, status, body, "already used")
		third := d.token(false)
		time.Sleep(15*time.Minute - time.Second)
		status, body = d.challenge(third)
		d.want("just before the expiry", 200, status, body, "")
		time.Sleep(time.Second)
		status, body = d.claim(third)
		d.want("at the expiry", 403, status, body, "expired")
		d.open()
		status, body = d.claim(second)
		d.want("used, after a restart", 403, status, body, "already used")
		if d.token(false) == third {
			t.Error("an expired link is shown again")
		}
		status, body = d.challenge(third)
		d.want("expired, after a new link", 403, status, body, "expired")
	})
}

func TestH02OnlyWrongTokensAreLimited(t *testing.T) {
	d := newDoor(t)
	good := d.token(false)
	limited := 0
	for i := range 2000 {
		from := fmt.Sprintf("203.0.113.%d:4000", 10+i%50)
		status, _ := d.post("/veyra/connect/challenge", from, map[string]any{
			"token": fmt.Sprintf("wrong-token-%030d", i), "challenge": goodQuestion, "veyra_origin": origin,
		})
		switch status {
		case 429:
			limited++
		case 403:
		default:
			t.Fatalf("a wrong token is answered %d", status)
		}
	}
	if limited < 1000 {
		t.Errorf("only %d of 2000 wrong tokens were limited", limited)
	}
	status, body := d.post("/veyra/connect/challenge", "203.0.113.10:4000", map[string]any{
		"token": string(good), "challenge": goodQuestion, "veyra_origin": origin,
	})
	d.want("the right token from a limited address", 200, status, body, "")
}

func TestH02AddressesAreBounded(t *testing.T) {
	if n := supervisor.WrongTokens(20_000); n > 4096 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// A binding that can't be stored is no binding, and its token stays good.
func TestH03UnstoredClaimsUseUpNothing(t *testing.T) {
	d := newDoor(t)
	token := d.token(false)
	away := d.dir + ".away"
	if err := os.Rename(d.dir, away); err != nil {
		t.Fatal(err)
	}
	status, body := d.claim(token)
	d.want("a claim without a disk", 503, status, body, "could not store")
	if d.pairing.State() != supervisor.Unpaired {
		t.Errorf("state %s", d.pairing.State())
	}
	if err := os.Rename(away, d.dir); err != nil {
		t.Fatal(err)
	}
	status, body = d.claim(token)
	d.want("the same claim afterwards", 201, status, body, "")
}

func TestH03OfTwoClaimsOneWins(t *testing.T) {
	d := newDoor(t)
	for round := range 100 {
		token := d.token(true)
		var wait sync.WaitGroup
		results := make([]int, 4)
		for i := range results {
			wait.Go(func() {
				if i == 3 {
					_, _ = d.challenge(token)
					return
				}
				results[i], _ = d.claim(token, "agent_name", fmt.Sprintf("claim %d", i))
			})
		}
		wait.Wait()
		won := 0
		for _, status := range results[:3] {
			if status == 201 {
				won++
			} else if status != 403 {
				t.Errorf("round %d: a loser got %d", round, status)
			}
		}
		if won != 1 {
			t.Fatalf("round %d: %d claims won: %v", round, won, results)
		}
	}
}

func TestH05ClaimsNameListedOriginsOnly(t *testing.T) {
	d := newDoor(t)
	token := d.token(false)
	for name, change := range map[string][]any{
		"unlisted origin":   {"heartbeat_url", "https://evil.example" + protocol.PathHeartbeat},
		"http":              {"heartbeat_url", "http://plane.example" + protocol.PathHeartbeat},
		"user-info":         {"heartbeat_url", "https://u@plane.example" + protocol.PathHeartbeat},
		"port":              {"configuration_url", "https://plane.example:444" + protocol.PathConfiguration},
		"path":              {"configuration_url", origin + "/api/v1/other/"},
		"query":             {"heartbeat_url", origin + protocol.PathHeartbeat + "?x=1"},
		"no slash":          {"heartbeat_url", strings.TrimSuffix(origin+protocol.PathHeartbeat, "/")},
		"no agent":          {"agent_id", ""},
		"agent with a path": {"agent_id", "../../x"},
		"short credential":  {"runtime_credential", strings.Repeat("x", 39)},
		"header injection":  {"runtime_credential", someSecret + "\r\nX: y"},
		"protocol 2":        {"protocol_version", 2},
		"token as number":   {"token", 7},
	} {
		if status, body := d.claim(token, change...); status != 400 {
			t.Errorf("%s: %d %v, want 400", name, status, body)
		}
	}
	if d.pairing.State() != supervisor.Unpaired {
		t.Errorf("state %s after refused claims", d.pairing.State())
	}
	status, body := d.claim(token)
	d.want("the good claim afterwards", 201, status, body, "")
}

func TestH06ChallengesHoldNoOtherText(t *testing.T) {
	d := newDoor(t)
	for _, bad := range []string{
		"", strings.Repeat("c", 23), strings.Repeat("c", 257), strings.Repeat("é", 30),
		"veyra-job-result-v1:" + someID + ":" + someLease, strings.Repeat("c", 30) + "\n", strings.Repeat("c", 30) + "=",
	} {
		status, body := d.challenge(d.token(true), "challenge", bad)
		if status != 400 || body["signature"] != nil {
			t.Errorf("challenge %q: %d %v", bad, status, body)
		}
	}
	for _, good := range []string{strings.Repeat("c", 24), strings.Repeat("-_aA9", 51) + "z"} {
		if status, body := d.challenge(d.token(true), "challenge", good); status != 200 {
			t.Errorf("challenge of %d: %d %v", len(good), status, body)
		}
	}
}

func TestH07SignaturesForATokenAreCapped(t *testing.T) {
	d := newDoor(t)
	token, signed := d.token(false), 0
	for range 100 {
		if status, _ := d.challenge(token); status == 200 {
			signed++
		}
	}
	if signed == 0 || signed > 20 {
		t.Errorf("%d signatures for one token", signed)
	}
	status, body := d.challenge(d.token(true))
	d.want("a new link", 200, status, body, "")
}

func TestH08RelayedChallengesAreNotSigned(t *testing.T) {
	d := newDoor(t)
	token := d.token(false)
	for _, from := range []string{"https://evil.example", "https://plane.example.evil.example", "http://plane.example", "nonsense"} {
		status, body := d.challenge(token, "veyra_origin", from)
		d.want(from, 403, status, body, "another origin")
	}
	for _, from := range []string{"", origin, origin + "/", "https://PLANE.example:443"} {
		if status, body := d.challenge(token, "veyra_origin", from); status != 200 {
			t.Errorf("origin %q: %d %v", from, status, body)
		}
	}
}

func TestH09BodiesAreBounded(t *testing.T) {
	d := newDoor(t)
	status, _ := d.send("/veyra/connect/claim", stranger, `{"token":"`+strings.Repeat("x", 70<<10)+`"}`)
	if status != 413 {
		t.Errorf("a body over 64 KiB: %d", status)
	}
	for _, body := range []string{"", "[]", "null", "{", strings.Repeat(`{"a":`, 1000), `{"token":"a","token":"b"}`, "\xff"} {
		if status, _ := d.send("/veyra/connect/challenge", stranger, body); status != 400 && status != 403 {
			t.Errorf("body %.20q: %d", body, status)
		}
	}
}

// Attack case H10: what does not fit together stops the daemon and stays as it
// is.
func TestH10ForeignStateIsNotTouched(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, d *door){
		"other key": func(_ *testing.T, d *door) {
			d.key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
		},
		"group-readable": func(t *testing.T, d *door) { chmod(t, filepath.Join(d.dir, "binding.json"), 0o640) },
		"open directory": func(t *testing.T, d *door) { chmod(t, d.dir, 0o755) },
		"not json":       func(t *testing.T, d *door) { write(t, d, "binding.json", "{") },
		"empty":          func(t *testing.T, d *door) { write(t, d, "binding.json", "") },
		"huge":           func(t *testing.T, d *door) { write(t, d, "binding.json", strings.Repeat(" ", 1<<20)) },
		"later version":  func(t *testing.T, d *door) { write(t, d, "link.json", `{"version":2}`) },
		"unknown member": func(t *testing.T, d *door) { write(t, d, "link.json", `{"version":1,"extra":1}`) },
		"a link": func(t *testing.T, d *door) {
			path := filepath.Join(d.dir, "binding.json")
			if err := errors.Join(os.Rename(path, path+".x"), os.Symlink(path+".x", path)); err != nil {
				t.Fatal(err)
			}
		},
		"a directory": func(t *testing.T, d *door) {
			path := filepath.Join(d.dir, "binding.json")
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t)
			if status, body := d.claim(d.token(false)); status != 201 {
				t.Fatalf("claim: %d %v", status, body)
			}
			spoil(t, d)
			before := snapshot(t, d.dir)
			if _, err := supervisor.OpenPairing(d.config()); !errors.Is(err, supervisor.ErrState) {
				t.Errorf("OpenPairing: %v, want ErrState", err)
			}
			if after := snapshot(t, d.dir); after != before {
				t.Errorf("the state changed from %s to %s", before, after)
			}
		})
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, d *door, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		fmt.Fprintf(&all, "%s %v %q\n", e.Name(), e.Type(), text)
	}
	return all.String()
}

func TestH12HealthSaysNothingMore(t *testing.T) {
	d := newDoor(t)
	r := httptest.NewRequest("GET", "/veyra/health", nil)
	w := httptest.NewRecorder()
	d.public.ServeHTTP(w, r)
	if got := strings.TrimSpace(w.Body.String()); got != `{"ok":true,"protocol_version":1,"paired":false}` {
		t.Errorf("health %s", got)
	}
	for _, path := range []string{"/", "/metrics", "/veyra/connect/challenge", "/veyra/link", "/veyra/connect/x"} {
		w := httptest.NewRecorder()
		d.public.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, w.Code)
		}
		if strings.Contains(w.Body.String(), someID) {
			t.Errorf("GET %s shows the runtime id", path)
		}
	}
}

// A claim whose answer was lost does not brick the runtime: until the first 200
// a new link takes any agent.
func TestH03LostClaimIsReplaced(t *testing.T) {
	d := newDoor(t)
	status, body := d.claim(d.token(false))
	d.want("the lost claim", 201, status, body, "")
	status, body = d.claim(d.token(false), "agent_id", someLease)
	d.want("another agent's claim", 201, status, body, "")
	d.open()
	if d.pairing.State() != supervisor.Claimed {
		t.Errorf("state %s, want claimed", d.pairing.State())
	}
	if text, _ := os.ReadFile(filepath.Join(d.dir, "binding.json")); !bytes.Contains(text, []byte(someLease)) {
		t.Error("the newer binding was not stored")
	}
}

func TestForwardedAddressesCountOnlyFromNearPeers(t *testing.T) {
	d := newDoor(t)
	wrong := func(peer, forwarded string) int {
		r := httptest.NewRequest("POST", "/veyra/connect/challenge", strings.NewReader(
			`{"token":"wrong-token-000000000000000000000","challenge":"`+goodQuestion+`"}`))
		r.RemoteAddr = peer
		r.Header.Set("X-Forwarded-For", forwarded)
		w := httptest.NewRecorder()
		d.public.ServeHTTP(w, r)
		return w.Code
	}
	for i := range 15 {
		if status := wrong("10.0.0.1:1", fmt.Sprintf("198.51.100.1, 192.0.2.%d", i)); status != 403 {
			t.Fatalf("address %d behind the proxy: %d", i, status)
		}
	}
	limited := false
	for i := range 15 {
		limited = limited || wrong("203.0.113.9:1", fmt.Sprintf("192.0.2.%d", i)) == 429
	}
	if !limited {
		t.Error("a far peer's X-Forwarded-For is believed")
	}
}

// Before root is given up it reads what the later id has written, and nobody
// else's files.
func TestH10RootReadsTheSupervisorsFilesOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not applicable: needs root to give files away")
	}
	d := newDoor(t)
	if status, body := d.claim(d.token(false)); status != 201 {
		t.Fatalf("claim: %d %v", status, body)
	}
	binding, link := filepath.Join(d.dir, "binding.json"), filepath.Join(d.dir, "link.json")
	for _, path := range []string{d.dir, binding, link} {
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := supervisor.OpenPairing(d.config()); err != nil {
		t.Errorf("files of the directory's owner: %v", err)
	}
	if err := os.Chown(link, 12346, 12345); err != nil {
		t.Fatal(err)
	}
	if _, err := supervisor.OpenPairing(d.config()); !errors.Is(err, supervisor.ErrState) {
		t.Errorf("a file of somebody else: %v, want ErrState", err)
	}
}

// Invariant 1: a link's token and the credential are known secrets.
func TestPairingSecretsAreRedacted(t *testing.T) {
	inLab(t, controlplanetest.Options{Qualified: true}, func(l *lab) {
		text, err := l.sup.Link(false)
		if err != nil {
			t.Fatal(err)
		}
		link, err := protocol.ParseLink(text)
		if err != nil || !l.secrets.Contains([]byte(link.Token)) {
			t.Errorf("the pairing token is no known secret (%v)", err)
		}
		credential := ""
		_, err = l.plane.PairWith(context.Background(), text, controlplanetest.PairOptions{
			Claim: func(body map[string]any) { credential = body["runtime_credential"].(string) },
		})
		if err != nil || !l.secrets.Contains([]byte(credential)) {
			t.Errorf("the runtime credential is no known secret (%v)", err)
		}
	})
}
