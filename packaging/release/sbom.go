package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The parts of SPDX 2.3 that the SBOM has.
type (
	spdxDocument struct {
		Version       string         `json:"spdxVersion"`
		License       string         `json:"dataLicense"`
		ID            string         `json:"SPDXID"`
		Name          string         `json:"name"`
		Namespace     string         `json:"documentNamespace"`
		Creation      spdxCreation   `json:"creationInfo"`
		Packages      []spdxPackage  `json:"packages"`
		Relationships []spdxRelation `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name      string         `json:"name"`
		ID        string         `json:"SPDXID"`
		Version   string         `json:"versionInfo,omitempty"`
		File      string         `json:"packageFileName,omitempty"`
		Location  string         `json:"downloadLocation"`
		Analyzed  bool           `json:"filesAnalyzed"`
		License   string         `json:"licenseDeclared"`
		Concluded string         `json:"licenseConcluded"`
		Copyright string         `json:"copyrightText"`
		Checksums []spdxChecksum `json:"checksums,omitempty"`
		Refs      []spdxRef      `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelation struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const unstated = "NOASSERTION"

// module returns the package of a Go module.
func module(path, version string) spdxPackage {
	id := "SPDXRef-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, path+"-"+version)
	return spdxPackage{Name: path, ID: id, Version: version, Location: unstated, License: unstated, Concluded: unstated, Copyright: unstated,
		Refs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")}}}
}

// sbomOf returns the SBOM of these binaries: the files, and for Go programs the modules in them, from Go's build information.
func sbomOf(name, version string, when time.Time, binaries []string) ([]byte, error) {
	modules := map[string]spdxPackage{}
	whole := sha256.New()
	d := spdxDocument{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + version,
		Creation: spdxCreation{when.Format(time.RFC3339), []string{"Tool: vrdma-release"}}}
	for _, binary := range slices.Sorted(slices.Values(binaries)) {
		content, err := os.ReadFile(binary)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		whole.Write(sum[:])
		base := filepath.Base(binary)
		p := spdxPackage{Name: base, ID: "SPDXRef-File-" + base, Version: version, File: base, Location: unstated,
			License: "Apache-2.0", Concluded: "Apache-2.0", Copyright: unstated, Checksums: []spdxChecksum{{"SHA256", hex.EncodeToString(sum[:])}}}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, spdxRelation{d.ID, "DESCRIBES", p.ID})
		if strings.HasSuffix(base, ".so") { // C, which carries nothing of others
			continue
		}
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return nil, fmt.Errorf("%s has no Go build information: %w", binary, err)
		}
		inside := []spdxPackage{module("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
		for _, dep := range info.Deps {
			if dep.Replace != nil {
				dep = dep.Replace
			}
			inside = append(inside, module(dep.Path, dep.Version))
		}
		for _, m := range inside {
			modules[m.ID] = m
			d.Relationships = append(d.Relationships, spdxRelation{p.ID, "CONTAINS", m.ID})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(modules)) {
		d.Packages = append(d.Packages, modules[id])
	}
	// A name that no other document has; nothing is served there.
	d.Namespace = "https://vrdma.dev/spdx/" + d.Name + "-" + hex.EncodeToString(whole.Sum(nil))[:16]
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}
