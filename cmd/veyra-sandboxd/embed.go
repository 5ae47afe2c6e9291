package main

import (
	"embed"
	"fmt"
	"io/fs"
)

// helpers holds veyra-init and veyra-git once `make build` has put them there,
// and a README so that the directory exists in a fresh checkout.
//
//go:embed helpers
var helpers embed.FS

// embedded returns a helper by its name, or fs.ErrNotExist.
func embedded(name string) ([]byte, error) { return helpers.ReadFile("helpers/" + name) }

// checkHelpers says what is missing in a build made without the Makefile.
func checkHelpers() error {
	for _, name := range []string{"veyra-init", "veyra-git"} {
		if _, err := fs.Stat(helpers, "helpers/"+name); err != nil {
			return fmt.Errorf("this build has no %s in it, so no sandbox can start: build with `make build`", name)
		}
	}
	return nil
}
