package main_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/provider/providertest"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/docker/enginetest"
)

// onEngine aims a command at an engine, within what the host has for a sandbox.
func onEngine(t *testing.T, e *enginetest.Engine, policy string, args ...string) said {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "none")
	if e != nil {
		socket = e.Socket
	}
	env := []string{"VEYRA_DOCKER_SOCKET=" + socket, "VEYRA_SANDBOX_BACKEND=docker", "VEYRA_SANDBOX_RUNTIME=runc"}
	return commandIn(t, env, "", append([]string{"--policy", policy, "--config", frugal(t)}, args...)...)
}

// TestDockerBackend is what an operator sees of it: a sandbox under strict where
// ids are remapped; where they are not, strict names what is missing and standard
// names what is weaker.
func TestDockerBackend(t *testing.T) {
	needSandboxes(t)
	remapped := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	got := commandIn(t, []string{"VEYRA_DOCKER_SOCKET=" + remapped.Socket}, "in\n", "sandbox", "run", "--backend", "docker", "--runtime", "runc",
		"--policy", "strict", "--config", frugal(t), "--", "sh", "-c", "cat; id -u; exit 7").want(t, 7)
	if got.out != "in\n1000\n" {
		t.Errorf("stdout %q", got.out)
	}
	doctor := onEngine(t, remapped, "strict", "doctor").want(t, 0)
	if !strings.Contains(doctor.out, "backend docker, runtime runc") {
		t.Errorf("doctor says:\n%s", doctor.out)
	}
	proof := onEngine(t, remapped, "strict", "doctor", "--prove", "--state-dir", t.TempDir()).want(t, 0)
	if !strings.Contains(proof.out, "proven   host_unchanged") {
		t.Errorf("the proof says:\n%s", proof.out)
	}
	state := filepath.Join(t.TempDir(), "state")
	if proof := onEngine(t, remapped, "strict", "doctor", "--prove", "--state-dir", state).want(t, 0); !strings.Contains(proof.out, "\nproof    ") {
		t.Errorf("doctor --prove says:\n%s", proof.out)
	}

	plain := enginetest.Start(t, enginetest.Debian, enginetest.Options{})
	refused := onEngine(t, plain, "strict", "sandbox", "run", "--", "true").want(t, 125)
	diagnosis := onEngine(t, plain, "strict", "doctor").want(t, 4)
	for _, text := range []string{refused.err, diagnosis.err} {
		if !strings.Contains(text, "user_namespace") {
			t.Errorf("what is missing isn't named: %s", text)
		}
	}
	diagnosis = onEngine(t, plain, "standard", "doctor").want(t, 0)
	if !strings.Contains(diagnosis.out, "waived   user_namespace") {
		t.Errorf("what is weaker isn't named:\n%s", diagnosis.out)
	}
}

// TestWholeJobOnDocker is a job from its lease to the accepted result, every
// sandbox of it on an engine, under strict.
func TestWholeJobOnDocker(t *testing.T) {
	w := newWorld(t, false)
	p := w.newPlace()
	e := enginetest.Start(t, enginetest.Current, enginetest.Options{Remap: true})
	p.env = append(p.env, "VEYRA_SANDBOX_BACKEND=docker", "VEYRA_SANDBOX_RUNTIME=runc", "VEYRA_DOCKER_SOCKET="+e.Socket)
	d := w.start(p)
	d.pair(w)
	done := w.accepted(w.job("engine", "Make add add", project(), nil, fix(), providertest.Step{Finish: "Fixed add."}))
	wantEvidence(t, done, "funded_policy")
	d.stop()
	until(t, "the engine lists no container", func() bool { return strings.TrimSpace(e.Ask("/containers/json?all=1")) == "[]" })
}

// TestJ07NoEngineNoOtherBackend: nothing takes the place of an engine that isn't
// there, or of a runtime that it doesn't list.
func TestJ07NoEngineNoOtherBackend(t *testing.T) {
	needSandboxes(t)
	for _, args := range [][]string{{"sandbox", "run", "--", "true"}, {"doctor"}} {
		got := onEngine(t, nil, "standard", args...)
		if got.code != 125 && got.code != 4 || !strings.Contains(got.err, "Docker Engine") {
			t.Errorf("%v without an engine: exit status %d, %s", args, got.code, got.err)
		}
	}
}
