package images

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A code name and a version as Debian writes them (deb-version(7)).
var (
	codenameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	versionForm  = regexp.MustCompile(`^[0-9][A-Za-z0-9.+~:-]{0,127}$`)
)

// read fills in what the last hook wrote down, and wants all of it: an image
// that can't say what is in it isn't recorded.
func (f facts) read(work string, recipe recipe) (facts, error) {
	release, err := readSmall(filepath.Join(work, "os-release"))
	if err != nil {
		return facts{}, err
	}
	f.codename = codename(release)
	if f.codename == "" {
		return facts{}, fmt.Errorf("reading os-release: no VERSION_CODENAME")
	}
	packages, err := readSmall(filepath.Join(work, "packages"))
	if err != nil {
		return facts{}, err
	}
	f.tools, err = versions(packages, recipe.packages)
	return f, err
}

// codename finds VERSION_CODENAME in an os-release(5) text; empty when there is
// none of the known form.
func codename(release string) string {
	for line := range strings.Lines(release) {
		value, found := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME=")
		value = strings.Trim(value, `"'`)
		if found && codenameForm.MatchString(value) {
			return value
		}
	}
	return ""
}

// versions picks the wanted packages out of lines "name version".
func versions(packages string, wanted []string) (map[string]string, error) {
	installed := map[string]string{}
	for line := range strings.Lines(packages) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if versionForm.MatchString(version) {
			installed[name] = version
		}
	}
	picked := map[string]string{}
	for _, name := range wanted {
		version, found := installed[name]
		if !found {
			return nil, fmt.Errorf("reading package versions: %s is not among them", name)
		}
		picked[name] = version
	}
	return picked, nil
}

func readSmall(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFacts+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxFacts {
		return "", fmt.Errorf("reading %s: more than %d bytes", path, maxFacts)
	}
	return string(text), nil
}
