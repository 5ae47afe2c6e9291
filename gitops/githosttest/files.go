package githosttest

import (
	"net/http"
	"strconv"
	"strings"
)

var statusNames = map[byte]string{'A': "added", 'M': "modified", 'D': "removed", 'R': "renamed", 'T': "modified"}

// listFiles answers what git finds between merge base and head with rename
// detection, 30 a page unless asked otherwise.
func (h *Host) listFiles(w http.ResponseWriter, r *http.Request, owner, name string, p *pull) {
	out, err := h.Git(owner, name, "diff", "--name-status", "-z", "-M50%",
		"refs/heads/"+p.base+"...refs/heads/"+p.head)
	if err != nil {
		reply(w, http.StatusInternalServerError, map[string]string{"message": "diff failed"})
		return
	}
	files := parseStatus(out)
	if h.NoPreviousName {
		for _, f := range files {
			delete(f, "previous_filename")
		}
	}
	per, page := number(r, "per_page", 30), number(r, "page", 1)
	from := min((page-1)*per, len(files))
	reply(w, http.StatusOK, files[from:min(from+per, len(files))])
}

func number(r *http.Request, name string, otherwise int) int {
	n, err := strconv.Atoi(r.URL.Query().Get(name))
	if err != nil || n < 1 {
		return otherwise
	}
	return n
}

// parseStatus reads `git diff --name-status -z`.
func parseStatus(out string) []map[string]string {
	fields := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	files := []map[string]string{}
	for i := 0; i+1 < len(fields); {
		f := map[string]string{"status": statusNames[fields[i][0]]}
		if fields[i][0] == 'R' {
			f["previous_filename"], f["filename"] = fields[i+1], fields[i+2]
			i += 3
		} else {
			f["filename"] = fields[i+1]
			i += 2
		}
		files = append(files, f)
	}
	return files
}
