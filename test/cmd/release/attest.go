package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// source is the repository in documents for machines.
const source = "https://github.com/cnibox/cnibox"

// attest writes the provenance, the checksums of all files, and their signature.
func (r *release) attest(ctx context.Context) error {
	subjects, err := r.sums()
	if err != nil {
		return err
	}
	doc, err := json.MarshalIndent(r.provenance(subjects), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.name(".intoto.json"), append(doc, '\n'), 0o644); err != nil {
		return err
	}
	if subjects, err = r.sums(); err != nil {
		return err
	}
	var lines strings.Builder
	for _, s := range subjects {
		fmt.Fprintf(&lines, "%s  %s\n", s.Digest["sha256"], s.Name)
	}
	list := filepath.Join(r.dist, "SHA256SUMS")
	if err := os.WriteFile(list, []byte(lines.String()), 0o644); err != nil || r.key == "" {
		return err
	}
	comment := fmt.Sprintf("cnibox %s, commit %s", r.version, r.commit)
	_, err = run(ctx, "", nil, "minisign", "-S", "-s", r.key, "-m", list, "-c", comment, "-t", comment)
	return err
}

// subject is an in-toto ResourceDescriptor: a file and its digest.
type subject struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// sums returns the files of the release, sorted by name.
func (r *release) sums() ([]subject, error) {
	files, err := os.ReadDir(r.dist)
	if err != nil {
		return nil, err
	}
	out := make([]subject, 0, len(files))
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(r.dist, f.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		out = append(out, subject{Name: f.Name(), Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	return out, nil
}

// provenance returns an in-toto statement (v1) with a SLSA provenance predicate (v1). It has no time of its own:
// the same commit gives the same statement.
func (r *release) provenance(subjects []subject) any {
	return object{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          source + "/blob/main/docs/release.md",
				"externalParameters": object{"target": "release", "version": r.version},
				"resolvedDependencies": []subject{
					{URI: "git+" + source + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": r.commit}},
					{URI: "https://go.dev/dl/" + runtime.Version() + ".src.tar.gz"},
				},
			},
			"runDetails": object{"builder": object{"id": source + "/blob/main/test/cmd/release"}},
		},
	}
}

// answered matches a row of the table of vulnerabilities in SECURITY.md, and the answer in it.
var answered = regexp.MustCompile(`(?m)^\| (CVE-\d+-\d+) \|[^|]*\|[^|]*\| ([^|]*) \|$`)

// vulnerabilities writes an OpenVEX document (v0.2.0) of the vulnerabilities that SECURITY.md lists.
func (r *release) vulnerabilities(context.Context) error {
	security, err := os.ReadFile(filepath.Join(r.src, "SECURITY.md"))
	if err != nil {
		return err
	}
	var statements []object
	for _, row := range answered.FindAllSubmatch(security, -1) {
		statements = append(statements, object{
			"vulnerability": object{"name": string(row[1])},
			"products":      []object{{"@id": "pkg:golang/" + strings.TrimPrefix(source, "https://") + "@" + r.version}},
			"status":        "not_affected", "justification": "vulnerable_code_not_present", "impact_statement": string(row[2]),
		})
	}
	doc, err := json.MarshalIndent(object{
		"@context": "https://openvex.dev/ns/v0.2.0", "@id": source + "/releases/download/" + r.version + "/" + filepath.Base(r.name(".openvex.json")),
		"author": "The cnibox authors", "timestamp": r.at.Format(time.RFC3339), "version": 1, "statements": statements,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.name(".openvex.json"), append(doc, '\n'), 0o644)
}
