package supervisor_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

const (
	origin       = "https://plane.example"
	someSecret   = "a-runtime-credential-of-forty-characters-or-more"
	goodQuestion = "ccccccccccccccccccccccccccccccccccccccccccc"
)

// door is a public handler over a pairing of its own, without a network.
type door struct {
	t   *testing.T
	dir string
	// host is what links name from the next open on.
	host    string
	key     ed25519.PrivateKey
	pairing *supervisor.Pairing
	public  *supervisor.Public
}

func newDoor(t *testing.T) *door {
	t.Helper()
	d := &door{t: t, dir: t.TempDir(), host: "host.example:9100", key: ed25519.NewKeyFromSeed(make([]byte, 32))}
	if err := os.Chmod(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d.open()
	return d
}

func (d *door) config() supervisor.PairingConfig {
	listed, err := protocol.ParseOrigin(origin)
	if err != nil {
		d.t.Fatal(err)
	}
	return supervisor.PairingConfig{
		Dir: d.dir, RuntimeID: "runtime-" + someID, PublicHost: d.host, LinkTTL: 15 * time.Minute,
		PublicKey: base64.RawURLEncoding.EncodeToString(d.key.Public().(ed25519.PublicKey)),
		Origins:   []protocol.Origin{listed},
	}
}

// open reads the state anew, as a restart does.
func (d *door) open() {
	d.t.Helper()
	d.openBehind(true)
}

// openBehind is open, with or without a proxy in front.
func (d *door) openBehind(proxy bool) {
	d.t.Helper()
	var err error
	if d.pairing, err = supervisor.OpenPairing(d.config()); err != nil {
		d.t.Fatal(err)
	}
	intro := supervisor.Introduction{
		Role: protocol.RoleWorker, Version: "1.2.3", Provider: "p", Model: "m",
		Provide: func() (bool, string) { return true, "" },
	}
	d.public = supervisor.NewPublic(d.pairing, inProcess{"runtime-" + someID, d.key}, intro, proxy, logger(d.t))
}

func (d *door) token(rotate bool) protocol.PairingToken {
	d.t.Helper()
	text, err := d.pairing.Link(rotate)
	if err != nil {
		d.t.Fatal(err)
	}
	link, err := protocol.ParseLink(text)
	if err != nil {
		d.t.Fatal(err)
	}
	return link.Token
}

// post calls the public listener from an address and returns status and body.
func (d *door) post(path, from string, body map[string]any) (int, map[string]any) {
	d.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	return d.send(path, from, string(data))
}

func (d *door) send(path, from, body string) (int, map[string]any) {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	d.public.ServeHTTP(w, r)
	var got map[string]any
	_ = json.Unmarshal(w.Body.Bytes(), &got)
	return w.Code, got
}

const stranger = "203.0.113.7:4000"

func (d *door) challenge(token protocol.PairingToken, more ...any) (int, map[string]any) {
	body := map[string]any{"token": string(token), "challenge": goodQuestion, "veyra_origin": origin}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return d.post("/veyra/connect/challenge", stranger, body)
}

func claimBody(token protocol.PairingToken) map[string]any {
	return map[string]any{
		"token": string(token), "agent_id": someID, "agent_name": "an agent", "runtime_credential": someSecret,
		"heartbeat_url":     origin + protocol.PathHeartbeat,
		"configuration_url": origin + protocol.PathConfiguration, "protocol_version": 1,
	}
}

func (d *door) claim(token protocol.PairingToken, more ...any) (int, map[string]any) {
	body := claimBody(token)
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return d.post("/veyra/connect/claim", stranger, body)
}

func (d *door) want(what string, status int, got int, body map[string]any, says string) {
	d.t.Helper()
	detail, _ := body["detail"].(string)
	if got != status || !strings.Contains(detail, says) {
		d.t.Errorf("%s: %d %v, want %d with %q", what, got, body, status, says)
	}
}

func fuzzKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(make([]byte, 32)) }
