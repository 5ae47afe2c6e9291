package protocol_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestParseUUIDRefuses covers attack case G13.
func TestParseUUIDRefuses(t *testing.T) {
	if got, err := protocol.ParseUUID(uuidA); err != nil || got != uuidA {
		t.Errorf("%q, %v", got, err)
	}
	for _, s := range []string{
		"", "x", strings.ToUpper(uuidA), uuidA + "\n", " " + uuidA[1:], uuidA[:35], uuidA + "0", "{" + uuidA[1:35] + "}",
		strings.ReplaceAll(uuidA, "-", "_"), strings.ReplaceAll(uuidA, "-", ""), "../../../../../../../../../etc/passwd",
		uuidA[:35] + "g", uuidA[:35] + ":", uuidA[:34] + "\u00e9", strings.Repeat("a", 36), strings.Repeat("-", 36),
	} {
		if _, err := protocol.ParseUUID(s); !errors.Is(err, protocol.ErrID) {
			t.Errorf("%q: error = %v", s, err)
		}
	}
}

func TestParseRuntimeID(t *testing.T) {
	id, err := protocol.ParseRuntimeID("runtime-" + uuidA)
	if err != nil || id.Instance() != "43725ad0" {
		t.Errorf("%q, instance %q, %v", id, id.Instance(), err)
	}
	for _, s := range []string{"", uuidA, "runtime-", "Runtime-" + uuidA, "runtime-runtime-" + uuidA, "runtime-" + uuidA + "x"} {
		if _, err := protocol.ParseRuntimeID(s); !errors.Is(err, protocol.ErrID) {
			t.Errorf("%q: error = %v", s, err)
		}
	}
}

// TestSecretsPrintNothing covers attack case D05.
func TestSecretsPrintNothing(t *testing.T) {
	const canary = "canary-0123456789"
	secrets := []any{
		protocol.LeaseToken(canary), protocol.RepoToken(canary), protocol.RuntimeCredential(canary),
		protocol.PairingToken(canary),
		protocol.Credential{Token: canary},
		protocol.JobTask{LeaseToken: canary},
		protocol.ClaimRequest{RuntimeCredential: canary, Token: canary},
	}
	hex := fmt.Sprintf("%x", canary)
	for _, secret := range secrets {
		var out bytes.Buffer
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10.3s"} {
			fmt.Fprintf(&out, format, secret)
			fmt.Fprintf(&out, format, struct{ Inside any }{secret})
		}
		fmt.Fprintln(&out, fmt.Errorf("wrapped: %v", secret))
		slog.New(slog.NewTextHandler(&out, nil)).Info("said", "secret", secret)
		if text := out.String(); strings.Contains(text, canary) || strings.Contains(strings.ToLower(text), hex) {
			t.Errorf("%T shows itself: %s", secret, text)
		}
	}
}
