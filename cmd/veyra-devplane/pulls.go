package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/controlplane/controlplanetest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
)

// filesPage and filesMost are GitHub's: a hundred a page, 3,000 in all.
const (
	filesPage = 100
	filesMost = 3000
	pullBytes = 16 << 20
)

// pullReader lets the control plane read pull requests by the same REST calls
// that a runtime uses, with a token that may only read.
type pullReader struct {
	git    *githosttest.Host
	passes *passes
}

var _ controlplanetest.GitHub = pullReader{}

// PullRequest returns the pull request with all its files.
func (p pullReader) PullRequest(ctx context.Context, repository string, number int) (controlplanetest.PullRequest, error) {
	var none controlplanetest.PullRequest
	owner, name, _ := strings.Cut(repository, "/")
	token, _ := p.passes.grant(owner, name, githosttest.Read)
	defer p.passes.withdraw(token)
	root := fmt.Sprintf("/repos/%s/%s/pulls/%d", owner, name, number)
	var pull struct {
		State      string `json:"state"`
		HTMLURL    string `json:"html_url"`
		Head, Base struct{ Ref, SHA string }
	}
	if err := p.get(ctx, token, root, &pull); err != nil {
		return none, err
	}
	seen := controlplanetest.PullRequest{
		State: pull.State, HeadRef: pull.Head.Ref, HeadSHA: pull.Head.SHA, BaseRef: pull.Base.Ref, HTMLURL: pull.HTMLURL,
	}
	var err error
	seen.Files, err = p.files(ctx, token, root)
	return seen, err
}

func (p pullReader) files(ctx context.Context, token, root string) ([]string, error) {
	var names []string
	for page := 1; len(names) < filesMost; page++ {
		var files []struct{ Filename string }
		if err := p.get(ctx, token, fmt.Sprintf("%s/files?per_page=%d&page=%d", root, filesPage, page), &files); err != nil {
			return nil, err
		}
		for _, f := range files {
			names = append(names, f.Filename)
		}
		if len(files) < filesPage {
			break
		}
	}
	return names, nil
}

func (p pullReader) get(ctx context.Context, token, path string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("User-Agent", "veyra-devplane")
	res, err := controlplanetest.Direct{Handler: p.git}.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("reading %s: status %d", path, res.StatusCode)
	}
	return json.NewDecoder(io.LimitReader(res.Body, pullBytes)).Decode(into)
}
