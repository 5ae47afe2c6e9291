package policies

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
)

// Map returns the limits as evidence carries them: every field under its JSON
// name, integers only.
func (l Limits) Map() map[string]any { return asMap(l) }

// asMap turns a plain struct of ours into what has a canonical text. Its types
// can't fail to encode, which the tests go through.
func asMap(v any) map[string]any {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encoding %T: %v", v, err))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var m map[string]any
	if err := decoder.Decode(&m); err != nil {
		panic(fmt.Sprintf("decoding %T: %v", v, err))
	}
	return m
}

// Explain returns the canonical text of everything that decides what the job
// may do: policy, limits, paths, the digests of the seccomp profiles and of the
// image (its digest as the sandbox reports it; empty when none is chosen). It
// is the text under Digest, byte for byte.
func (e *Effective) Explain(image string) (string, error) {
	job, err := SeccompDigest(SeccompJob)
	if err != nil {
		return "", err
	}
	git, err := SeccompDigest(SeccompGit)
	if err != nil {
		return "", err
	}
	p := e.Policy
	text, err := canonjson.Marshal(map[string]any{
		"name":       p.Name,
		"require":    asMap(p.Require),
		"without":    controlNames(p.Without),
		"network":    string(p.Network),
		"scripts":    string(p.Scripts),
		"fetch_tree": string(p.FetchTree),
		"limits":     p.Limits.Map(),
		"paths": map[string]any{
			"allowed":         cleanLists(e.Allowed),
			"forbidden":       cleanList(e.Forbidden),
			"protected":       cleanList(e.Protected),
			"protected_names": cleanList(e.ProtectedNames),
		},
		"new_dependencies":    e.NewDependencies,
		"database_migrations": e.DatabaseMigrations,
		"minutes":             e.Minutes,
		"repairs":             e.Repairs,
		"image":               image,
		"seccomp":             map[string]any{"job": job, "git": git},
	})
	if err != nil {
		return "", fmt.Errorf("explaining policy %q: %w", p.Name, err)
	}
	return string(text), nil
}

// Digest returns the SHA-256 of Explain's text as 64 lower-case hex digits: the
// evidence's policy_sha256.
func (e *Effective) Digest(image string) (string, error) {
	text, err := e.Explain(image)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:]), nil
}

// cleanList makes texts of a task fit for canonical JSON, whatever is in them.
func cleanList(texts []string) []any {
	out := make([]any, 0, len(texts))
	for _, text := range texts {
		out = append(out, canonjson.CleanText(text))
	}
	return out
}

func cleanLists(lists [][]string) []any {
	out := make([]any, 0, len(lists))
	for _, list := range lists {
		out = append(out, cleanList(list))
	}
	return out
}

func controlNames(controls []Control) []any {
	out := make([]any, 0, len(controls))
	for _, c := range controls {
		out = append(out, string(c))
	}
	return out
}
