package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// sandboxImage is an image's digest, or empty for a sandbox without one.
type sandboxImage = images.Digest

// setUp finds the image for the tests and prepares the dependencies. Without a
// registry phase only projects that need nothing from one can go on.
func (j *job) setUp(ctx context.Context, r repository) (ready, error) {
	j.enter(protocol.PhasePreparingEnvironment, "Preparing the environment")
	if err := ctx.Err(); err != nil {
		return ready{}, err
	}
	commands, err := policies.ParseValidations(r.plan.Commands, len(r.plan.Commands))
	if err != nil {
		return ready{}, fail(protocol.CodeUnsafeValidationCommand, "reading the validation commands", err)
	}
	image, err := j.imageFor(commands)
	if err != nil {
		return ready{}, err
	}
	j.facts.image = image
	if r.setUp.Needed {
		return ready{}, fail(protocol.CodeDependencyPreparationFailed, "preparing the dependencies", errNeedsRegistry)
	}
	return ready{repository: r, image: image, commands: commands}, nil
}

// errNeedsRegistry goes into the summary, for the client to read.
var errNeedsRegistry = errors.New("the project declares dependencies, and this runtime has no network phase for registries yet")

// imageFor returns the one image whose tools all commands need.
func (j *job) imageFor(commands [][]string) (images.Digest, error) {
	var found images.Digest
	for _, args := range commands {
		toolchain := policies.ToolchainOf(args)
		image, ok := j.cfg.Image(toolchain)
		if !ok {
			return "", fail(protocol.CodeToolchainUnavailable, "choosing an image",
				fmt.Errorf("this runtime has no image for the toolchain %q", toolchain))
		}
		if found != "" && found != image {
			return "", fail(protocol.CodeToolchainUnavailable, "choosing an image", errors.New("the commands need tools of more than one image"))
		}
		found = image
	}
	return found, nil
}
