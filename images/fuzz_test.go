package images_test

import (
	"archive/tar"
	"bytes"
	"io"
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// FuzzSurvey: whatever the bytes are, an accepted archive names only paths
// inside the root, and no device.
func FuzzSurvey(f *testing.F) {
	for _, entries := range [][]entry{
		base(), base(symlink("./a", "../../b"), file("./c", "x")), base(hardLink("./x", "etc/name")),
		base(file("../x", "")), base(special("./d", tar.TypeChar)), base(dir("./x").with("SCHILY.xattr.user.a", "b")),
	} {
		f.Add(archive(f, entries))
	}
	limits := images.Limits{Layers: 1, Entries: 100, Blob: 1 << 20, Bytes: 1 << 20}
	f.Fuzz(func(t *testing.T, stream []byte) {
		if images.Survey(stream, limits) != nil {
			return
		}
		reader := tar.NewReader(bytes.NewReader(stream))
		for {
			header, err := reader.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatalf("accepted archive does not parse: %v", err)
			}
			if path.IsAbs(header.Name) || strings.Contains("/"+header.Name+"/", "/../") {
				t.Errorf("accepted name %q", header.Name)
			}
			if header.Typeflag == tar.TypeChar || header.Typeflag == tar.TypeBlock || header.Typeflag == tar.TypeFifo {
				t.Errorf("accepted type %q", header.Typeflag)
			}
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"version":1,"images":[{"name":"python","digest":"sha256:` + sha(nil) + `"}]}`))
	f.Add([]byte(`{"version":1,"images":[{"digest":"sha256:.."}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := images.ParseIndex(text)
		if err != nil {
			return
		}
		for _, image := range list {
			if _, err := images.ParseDigest(string(image.Digest)); err != nil {
				t.Errorf("accepted %v", err)
			}
		}
	})
}

// A cleaned name is clean, stays inside, and cleans to itself.
func TestCleanNameIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`(\./|/)?([ab.]{0,3}/){0,4}[ab.]{0,3}/?`).Draw(t, "name")
		cleaned, err := images.CleanName(name, name)
		if err != nil {
			return
		}
		if cleaned != path.Clean(cleaned) || path.IsAbs(cleaned) || cleaned == ".." || strings.HasPrefix(cleaned, "../") {
			t.Errorf("%q became %q", name, cleaned)
		}
		if again, err := images.CleanName(cleaned, cleaned); err != nil || again != cleaned {
			t.Errorf("%q became %q, then %q, %v", name, cleaned, again, err)
		}
	})
}
