package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"
)

// component is a Go module in the program, or Go's standard library.
type component struct{ name, version, licence string }

// purl returns the component's package URL. Scanners look vulnerabilities up by it.
func (c component) purl() string { return "pkg:golang/" + c.name + "@" + url.QueryEscape(c.version) }

// components writes the bill of materials of each architecture in both usual forms, from the modules that Go records in the program.
func (r *release) components(context.Context) error {
	for n, arch := range r.architectures {
		if err := r.materials(n, arch); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) materials(n int, arch string) error {
	info, err := buildinfo.ReadFile(r.binary(arch))
	if err != nil {
		return err
	}
	all := []component{{"stdlib", strings.TrimPrefix(info.GoVersion, "go"), r.licence["stdlib"]}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return fmt.Errorf("module %s is replaced by %s: a release has no replaced modules", m.Path, m.Replace.Path)
		}
		all = append(all, component{m.Path, m.Version, r.licence[m.Path+" "+m.Version]})
	}
	id := r.commit[:8] + "-" + r.commit[8:12] + "-4" + r.commit[13:16] + "-8" + r.commit[17:20] + "-" + fmt.Sprintf("%s%02x", r.commit[20:30], n)
	for file, doc := range map[string]object{r.binary(arch) + ".spdx.json": r.spdx(id, all), r.binary(arch) + ".cdx.json": r.cycloneDX(id, all)} {
		text, err := json.MarshalIndent(doc, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// self is the program as a component.
func (r *release) self() component {
	return component{strings.TrimPrefix(source, "https://"), r.version, "Apache-2.0"}
}

// cycloneDX returns a CycloneDX 1.5 document. id is a UUID.
func (r *release) cycloneDX(id string, all []component) object {
	describe := func(kind string, c component) object {
		return object{"type": kind, "bom-ref": c.purl(), "name": c.name, "version": c.version, "purl": c.purl(), "licenses": []object{{"expression": c.licence}}}
	}
	var libraries []object
	var refs []string
	for _, c := range all {
		libraries, refs = append(libraries, describe("library", c)), append(refs, c.purl())
	}
	return object{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": "urn:uuid:" + id, "version": 1,
		"metadata":     object{"timestamp": r.at.Format(time.RFC3339), "component": describe("application", r.self())},
		"components":   libraries,
		"dependencies": []object{{"ref": r.self().purl(), "dependsOn": refs}},
	}
}

// spdx returns an SPDX 2.3 document. id makes its namespace unique.
func (r *release) spdx(id string, all []component) object {
	const document = "SPDXRef-DOCUMENT"
	ref := func(i int) string { return fmt.Sprintf("SPDXRef-Package-%d", i) }
	var packages []object
	relations := []object{{"spdxElementId": document, "relationshipType": "DESCRIBES", "relatedSpdxElement": ref(0)}}
	for i, c := range append([]component{r.self()}, all...) {
		packages = append(packages, object{
			"SPDXID": ref(i), "name": c.name, "versionInfo": c.version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"licenseConcluded": c.licence, "licenseDeclared": c.licence, "copyrightText": "NOASSERTION",
			"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": c.purl()}},
		})
		if i > 0 {
			relations = append(relations, object{"spdxElementId": ref(0), "relationshipType": "DEPENDS_ON", "relatedSpdxElement": ref(i)})
		}
	}
	return object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": document, "name": "cnibox-" + r.version,
		"documentNamespace": source + "/spdx/" + id,
		"creationInfo":      object{"created": r.at.Format(time.RFC3339), "creators": []string{"Tool: cnibox-release"}},
		"packages":          packages, "relationships": relations,
	}
}
