package images

import (
	"fmt"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imagePath is the PATH that the image's config names; sandboxes set their own.
const imagePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// writeLayout makes an OCI layout with one image of one layer and returns the
// manifest's digest. The same layer always gives the same digest.
func writeLayout(path string, facts facts) (Digest, error) {
	packed, err := tarball.LayerFromFile(facts.layer, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return "", fmt.Errorf("reading layer: %w", err)
	}
	image, err := assemble(packed, facts.codename)
	if err != nil {
		return "", fmt.Errorf("assembling image: %w", err)
	}
	written, err := layout.Write(path, empty.Index)
	if err != nil {
		return "", fmt.Errorf("writing layout: %w", err)
	}
	if err := written.AppendImage(image); err != nil {
		return "", fmt.Errorf("writing layout: %w", err)
	}
	sum, err := image.Digest()
	if err != nil {
		return "", fmt.Errorf("hashing manifest: %w", err)
	}
	return ParseDigest(sum.String())
}

// assemble sets every media type to OCI's, which umoci insists on. Not by
// mutate.Time: that turns them all back into Docker's.
func assemble(packed v1.Layer, codename string) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: packed, MediaType: types.OCILayer})
	if err != nil {
		return nil, err
	}
	found, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config := found.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.History = nil
	config.Config = v1.Config{
		User: "1000:1000", WorkingDir: "/workspace",
		Env:    []string{"PATH=" + imagePath, "LANG=C.UTF-8", "HOME=/home/veyra"},
		Labels: map[string]string{"org.opencontainers.image.version": codename},
	}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return nil, err
	}
	return mutate.CreatedAt(image, v1.Time{Time: time.Unix(epoch, 0).UTC()})
}
