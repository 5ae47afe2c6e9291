package protocol

import (
	"errors"
	"net/url"
	"strings"
)

// CheckClone compares clone_url with the address that is really dialled:
// <origin>/<owner>/<name>.git on the git host that this runtime's owner pinned.
// Another one is a *TaskError, for the job was funded for a repository elsewhere
// and a namesake here must not get its change. The names' case, ".git" and a
// final slash may differ, as they do on the host; an empty clone_url says
// nothing. It is never dialled itself (attack case G04).
func (r Repository) CheckClone(git Origin) error {
	if r.CloneURL == "" {
		return nil
	}
	wrong := &TaskError{Field: "repository.clone_url", Why: "not the task's repository on the pinned git origin"}
	u, err := url.Parse(r.CloneURL)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return wrong
	}
	host, err := ParseOwnerOrigin(u.Scheme + "://" + u.Host)
	if err != nil || host != git {
		return wrong
	}
	path := strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), ".git")
	if !strings.EqualFold(path, "/"+r.Owner+"/"+r.Name) {
		return wrong
	}
	return nil
}

// CloneOrigin is the one of the pinned origins, at least one, that clone_url
// names; an empty clone_url leaves the first. The *TaskError of CheckClone says
// that it names none of them.
func (r Repository) CloneOrigin(pinned []Origin) (Origin, error) {
	wrong := errors.New("no git origin is pinned")
	for _, git := range pinned {
		if wrong = r.CheckClone(git); wrong == nil {
			return git, nil
		}
	}
	return Origin{}, wrong
}
