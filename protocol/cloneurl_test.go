package protocol_test

import (
	"errors"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

func TestCloneURLMustBeTheRepositoryOnThePinnedOrigin(t *testing.T) {
	git, err := protocol.ParseOwnerOrigin("https://github.com")
	if err != nil {
		t.Fatal(err)
	}
	for text, fits := range map[string]bool{
		"":                                      true,
		"https://github.com/example/sample.git": true,
		"https://github.com/Example/Sample":     true,
		"https://github.com:443/example/sample.git/":    true,
		"https://github.com/example/other.git":          false,
		"https://github.com/x/../example/sample.git":    false,
		"https://github.com.example.net/example/sample": false,
		"http://github.com/example/sample.git":          false,
		"https://user@github.com/example/sample.git":    false,
		"https://github.com/example/sample.git?a=b":     false,
		"git@github.com:example/sample.git":             false,
		"file:///example/sample.git":                    false,
		"%":                                             false,
	} {
		r := protocol.Repository{Owner: "example", Name: "sample", CloneURL: text}
		err := r.CheckClone(git)
		var broken *protocol.TaskError
		if fits != (err == nil) || !fits && !errors.As(err, &broken) {
			t.Errorf("clone_url %q: %v, want fitting %t", text, err, fits)
		}
	}
}

func TestCloneURLChoosesAmongPinnedOrigins(t *testing.T) {
	var pinned []protocol.Origin
	for _, text := range []string{"https://github.com", "https://git.example.net", "https://git.example.net:8443"} {
		origin, err := protocol.ParseOwnerOrigin(text)
		if err != nil {
			t.Fatal(err)
		}
		pinned = append(pinned, origin)
	}
	for text, want := range map[string]string{
		"":                                      "https://github.com",
		"https://github.com/example/sample.git": "https://github.com",
		"https://git.example.net/example/sample.git":  "https://git.example.net",
		"https://git.example.net:8443/example/sample": "https://git.example.net:8443",
		"https://elsewhere.example/example/sample":    "",
		"https://git.example.net/example/other":       "",
	} {
		r := protocol.Repository{Owner: "example", Name: "sample", CloneURL: text}
		got, err := r.CloneOrigin(pinned)
		if got.String() != want || (err == nil) != (want != "") {
			t.Errorf("clone_url %q: %q, %v, want %q", text, got, err, want)
		}
	}
	if got, err := (protocol.Repository{}).CloneOrigin(nil); err == nil {
		t.Errorf("of no origins %q is chosen", got)
	}
}
