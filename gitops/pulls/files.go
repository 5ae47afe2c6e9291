package pulls

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// File is one changed file as the host lists it. Previous is the old name of a
// renamed one.
type File struct {
	Filename string `json:"filename"`
	Status   string `json:"status"`
	Previous string `json:"previous_filename"`
}

const (
	pageSize = 100
	maxPages = 10 // the control plane reads no more
)

// Files reads the whole list, page by page with a counter of its own: links in
// an answer are never followed. More than 1,000 files are ErrMismatch.
func (c *Client) Files(ctx context.Context, number int64) ([]File, error) {
	const op = "reading changed files"
	var out []File
	for page := 1; page <= maxPages+1; page++ {
		q := url.Values{"per_page": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)}}
		var list []File
		k := call{op: op, method: http.MethodGet, path: fmt.Sprintf("/pulls/%d/files", number), query: q}
		if err := c.do(ctx, k, http.StatusOK, &list); err != nil {
			return nil, err
		}
		out = append(out, list...)
		if len(list) < pageSize {
			return out, nil
		}
	}
	return nil, fail(ErrMismatch, op, "more than %d files", pageSize*maxPages)
}

// Names gives the file names of a list, which are what is signed.
func Names(files []File) []string {
	out := make([]string, len(files))
	for i, f := range files {
		out[i] = f.Filename
	}
	return out
}

// EqualFiles compares a commit's own list of changed paths with the host's.
// The host pairs a deletion with an addition as a rename and lists it once,
// under the new name; which deletion it takes cannot be foretold. So the lists
// are equal if the commit's paths are all names and previous names together.
// A host that never names a previous one may leave out deletions, at most one
// for each added file.
func EqualFiles(changed []gitops.ChangedPath, listed []File) error {
	left := make(map[string]gitops.PathStatus, len(changed))
	for _, p := range changed {
		left[p.Path] = p.Status
	}
	renames, added := 0, 0
	for _, f := range listed {
		names := []string{f.Filename}
		if f.Status == "renamed" && f.Previous != "" {
			names = append(names, f.Previous)
			renames++
		}
		if left[f.Filename] == gitops.PathAdded {
			added++
		}
		if err := takeAll(left, names); err != nil {
			return err
		}
	}
	return onlyRenameSources(left, renames, added)
}

func takeAll(left map[string]gitops.PathStatus, names []string) error {
	for i, name := range names {
		status, ok := left[name]
		if !ok || i == 1 && status != gitops.PathDeleted {
			return fail(ErrMismatch, "comparing changed files", "host lists %.200q", name)
		}
		delete(left, name)
	}
	return nil
}

// onlyRenameSources judges what the host did not list.
func onlyRenameSources(left map[string]gitops.PathStatus, renames, added int) error {
	for path, status := range left {
		if renames > 0 || status != gitops.PathDeleted || len(left) > added {
			return fail(ErrMismatch, "comparing changed files", "host does not list %.200q", path)
		}
	}
	return nil
}
