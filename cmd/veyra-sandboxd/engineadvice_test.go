package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestA07EnginesRuntimeIsJudgedToo: strict refuses for the runtime that an
// engine starts, and warns of the engine, however old that is.
func TestA07EnginesRuntimeIsJudgedToo(t *testing.T) {
	s := defaultSettings()
	s.StateDir = t.TempDir()
	report := sandbox.Report{
		Backend: "docker", Runtime: "runc", Version: "1.1.11", Path: "/run/docker.sock",
		Software: []sandbox.Software{{Name: "docker", Version: "20.10.24"}},
	}
	found, err := advise(t.Context(), s, report)
	if !errors.Is(err, errAdvised) || !strings.Contains(err.Error(), "CVE-2024-21626") || strings.Contains(err.Error(), "CVE-2026-41567") {
		t.Errorf("strict says %v", err)
	}
	var ids []string
	for _, f := range found {
		ids = append(ids, f.ID)
	}
	for _, id := range []string{"CVE-2024-21626", "CVE-2026-41567", "docker-default-seccomp"} {
		if !slices.Contains(ids, id) {
			t.Errorf("%s is not named: %v", id, ids)
		}
	}
	if weaker := adviceWeakenings(found); len(weaker) != len(found)-1 {
		t.Errorf("%d findings are %d weakenings, all but the note should be", len(found), len(weaker))
	}
	report.Version = "1.5.3"
	if _, err := advise(t.Context(), s, report); err != nil {
		t.Errorf("an old engine with a new runtime: %v", err)
	}
}
