package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// TestA19NoJobThatThePolicyRefuses: whoever asks, the runner opens no job whose
// sandboxes would be the host's root under a policy that wants a user namespace.
func TestA19NoJobThatThePolicyRefuses(t *testing.T) {
	plain := map[string]any{"SecurityOptions": []string{"name=seccomp,profile=builtin"}, "DockerRootDir": "/var/lib/docker"}
	policy, err := policies.Builtin("strict")
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{engine: fakeEngine(t, "1.51", plain), config: Config{Policy: policy}}
	_, err = d.OpenJob(t.Context(), sandbox.JobSpec{ID: "one", Limits: policy.Limits})
	var typed *sandbox.Error
	if !errors.As(err, &typed) || typed.Kind != sandbox.KindStart || !strings.Contains(err.Error(), "user_namespace") {
		t.Errorf("under strict: %v", err)
	}
	if len(d.jobs.All()) > 0 {
		t.Error("the job is open")
	}
}
