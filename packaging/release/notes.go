package main

import (
	"errors"
	"fmt"
	"strings"
)

// notes returns the section of the changelog for a version: "## 1.2.3", with or without v and a date behind it. A version without
// a section of its own has that of what is unreleased.
func notes(changelog, version string) ([]byte, error) {
	sections := map[string]string{}
	name := ""
	for line := range strings.Lines(changelog) {
		if head, found := strings.CutPrefix(line, "## "); found {
			words := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(head))
			if len(words) == 0 {
				return nil, errors.New("the changelog has a heading without a version")
			}
			name = strings.TrimPrefix(strings.TrimRight(words[0], ",:"), "v")
			continue
		}
		if name != "" {
			sections[name] += line
		}
	}
	plain := strings.TrimPrefix(version, "v")
	text, found := sections[plain]
	if !found {
		text, found = sections["Unreleased"]
	}
	if !found {
		return nil, fmt.Errorf("the changelog has neither a section %q nor one called Unreleased", plain)
	}
	return []byte("# vrdma " + plain + "\n\n" + strings.TrimSpace(text) + "\n"), nil
}
