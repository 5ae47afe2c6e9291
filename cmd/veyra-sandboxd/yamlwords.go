package main

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/veyra-labs/veyra-sandboxd/internal/nearest"
)

// byteSize is a number of bytes, written with or without a unit: 5GiB.
type byteSize int64

var _ yaml.BytesUnmarshaler = (*byteSize)(nil)

// UnmarshalYAML takes 1024, 10KiB, 5GiB.
func (b *byteSize) UnmarshalYAML(text []byte) error {
	var n int64
	var unit string
	value := strings.Trim(strings.TrimSpace(string(text)), `"'`)
	if _, err := fmt.Sscanf(value, "%d%s", &n, &unit); err != nil && unit != "" || n < 0 {
		return fmt.Errorf("%q is no size such as 5GiB", value)
	}
	shift, known := map[string]uint{"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]
	if !known || n > 1<<62>>shift {
		return fmt.Errorf("%q is no size such as 5GiB", value)
	}
	*b = byteSize(n << shift)
	return nil
}

var quotedKey = regexp.MustCompile(`unknown field "([^"]{1,64})"`)

// nearestKey finds the known key that is most like the unknown one.
func nearestKey(message string) string {
	found := quotedKey.FindStringSubmatch(message)
	if found == nil {
		return ""
	}
	keys := knownKeys(reflect.TypeFor[Settings](), "")
	leaves := make([]string, 0, len(keys))
	for _, key := range keys {
		leaves = append(leaves, key[strings.LastIndexByte(key, '.')+1:])
	}
	if i := nearest.Index(found[1], leaves); i >= 0 {
		return keys[i]
	}
	return ""
}

func knownKeys(t reflect.Type, prefix string) []string {
	var keys []string
	for i := range t.NumField() {
		tag := t.Field(i).Tag.Get("yaml")
		if tag == "" || tag == "-" {
			continue
		}
		keys = append(keys, prefix+tag)
		if t.Field(i).Type.Kind() == reflect.Struct {
			keys = append(keys, knownKeys(t.Field(i).Type, prefix+tag+".")...)
		}
	}
	return keys
}
