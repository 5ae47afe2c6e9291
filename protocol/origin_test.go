package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

func TestParseOrigin(t *testing.T) {
	tests := map[string]string{
		"https://api.veyra.example":       "https://api.veyra.example",
		"HTTPS://API.Veyra.Example:443/":  "https://api.veyra.example",
		"https://api.veyra.example:08443": "https://api.veyra.example:8443",
		"http://localhost:8000":           "http://localhost:8000",
		"http://127.0.0.1:80":             "http://127.0.0.1",
		"http://[::1]:9100/":              "http://[::1]:9100",
		"https://[2001:DB8::1]":           "https://[2001:db8::1]",
	}
	for text, want := range tests {
		got, err := protocol.ParseOrigin(text)
		if err != nil || got.String() != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestParseOriginRefuses covers attack case H05.
func TestParseOriginRefuses(t *testing.T) {
	for _, text := range []string{
		"", "api.veyra.example", "//api.veyra.example", "ftp://x", "https://", "https:///x", "https:x",
		"http://api.veyra.example", "http://10.0.0.1", "http://127.0.0.1.evil.example", "http://localhost.evil.example",
		"https://u@x.example", "https://u:p@x.example", "https://@x.example", "https://x.example/path",
		"https://x.example?", "https://x.example?q", "https://x.example#", "https://x.example:", "https://x.example:0",
		"https://x.example:99999", "https://x.example:a", "https://x..example", "https://.example", "https://x_y.example",
		"https://ex\u00e4mple", "https://x example", "https://x\n.example", "https://[fe80::1%25eth0]", "https://x.example//",
		"https://" + strings.Repeat("a", 300),
	} {
		if got, err := protocol.ParseOrigin(text); !errors.Is(err, protocol.ErrOrigin) || !got.IsZero() {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestOwnerMayListPlainHTTP(t *testing.T) {
	got, err := protocol.ParseOwnerOrigin("http://10.0.0.5:8000")
	if err != nil || got.URL(protocol.PathHeartbeat) != "http://10.0.0.5:8000/api/v1/agent-runtime/heartbeat/" || got.Loopback() {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOriginSurvivesJSON(t *testing.T) {
	type file struct{ Origin, None protocol.Origin }
	var before, after file
	before.Origin, _ = protocol.ParseOrigin("http://[::1]:9100")
	text, err := json.Marshal(before)
	if err == nil {
		err = json.Unmarshal(text, &after)
	}
	if err != nil || before != after || !after.Origin.Loopback() {
		t.Errorf("%s became %+v, %v", text, after, err)
	}
}

const linkToken = "abcdefghijklmnopqrstuvwxyz-_0123456789"

func TestLink(t *testing.T) {
	for _, host := range []string{"host.example", "host.example:9100", "127.0.0.1:9100", "[::1]:9100"} {
		link, err := protocol.NewLink(host, linkToken)
		if err != nil {
			t.Fatal(err)
		}
		if want := "veyra-connect://" + host + "/connect/" + linkToken + "?protocol=1"; link.Text() != want {
			t.Errorf("link %q, want %q", link.Text(), want)
		}
		again, err := protocol.ParseLink(link.Text())
		if err != nil || again != link {
			t.Errorf("%q was read as %v, %v", link.Text(), again, err)
		}
		for _, format := range []string{"%v", "%s", "%+v", "%#v", "%q"} {
			if shown := fmt.Sprintf(format, link); strings.Contains(shown, linkToken) {
				t.Errorf("%s shows the token: %s", format, shown)
			}
		}
	}
}

func TestLinkRefuses(t *testing.T) {
	const rest = "/connect/" + linkToken + "?protocol=1"
	for _, text := range []string{
		"", "https://h" + rest, "veyra-connect://" + rest, "veyra-connect://u@h" + rest, "veyra-connect://h:99999" + rest,
		"veyra-connect://h" + rest + "#f", "veyra-connect://h" + rest + "&x=1", "veyra-connect://h/x" + rest,
		"veyra-connect://h/connect/" + linkToken, "veyra-connect://h/connect/" + linkToken + "?protocol=2",
		"veyra-connect://h/connect/short?protocol=1", "veyra-connect://h/connect/" + strings.Repeat("a", 257) + "?protocol=1",
		"veyra-connect://h/connect/" + linkToken + "%2F?protocol=1", "veyra-connect://" + strings.Repeat("h", 2000) + rest,
	} {
		if _, err := protocol.ParseLink(text); !errors.Is(err, protocol.ErrLink) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := protocol.NewLink("h/..", linkToken); !errors.Is(err, protocol.ErrLink) || strings.Contains(err.Error(), linkToken) {
		t.Errorf("error = %v", err)
	}
}

func FuzzParseOrigin(f *testing.F) {
	for _, seed := range []string{"https://api.veyra.example", "http://[::1]:9100", "HTTPS://A:443/", "https://u@x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := protocol.ParseOrigin(text)
		if err != nil {
			return
		}
		again, err := protocol.ParseOrigin(o.String())
		if err != nil || again != o {
			t.Fatalf("%q became %q, then %q, %v", text, o, again, err)
		}
	})
}
