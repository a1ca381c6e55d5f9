package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"testing"
)

const newRolePage = repository + "/CONTRIBUTING.md"

// quoted matches a block that shows one declaration of a Go file: a comment with the file and the name, then the fenced code.
var quoted = regexp.MustCompile("(?s)<!-- go:(\\S+) (\\S+) -->\n```go\n.*?```\n")

// TestNewRole: the code that CONTRIBUTING.md shows is that of the repository.
func TestNewRole(t *testing.T) {
	b, err := os.ReadFile(newRolePage)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	want := quoted.ReplaceAllStringFunc(string(b), func(block string) string {
		n++
		m := quoted.FindStringSubmatch(block)
		return fmt.Sprintf("<!-- go:%s %s -->\n```go\n%s\n```\n", m[1], m[2], declaration(t, repository+"/"+m[1], m[2]))
	})
	if n < 4 {
		t.Errorf("%s shows %d declarations, want four or more", newRolePage, n)
	}
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatal("CONTRIBUTING.md is out of date: run 'go test ./test/suites/docs -update'")
	}
	if err := os.WriteFile(newRolePage, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// declaration is the text of a type, function or method with its comment.
func declaration(t *testing.T, file, name string) string {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		doc, is := (*ast.CommentGroup)(nil), false
		switch d := d.(type) {
		case *ast.FuncDecl:
			doc, is = d.Doc, d.Name.Name == name
		case *ast.GenDecl:
			if len(d.Specs) == 1 {
				s, ok := d.Specs[0].(*ast.TypeSpec)
				doc, is = d.Doc, ok && s.Name.Name == name
			}
		}
		if !is {
			continue
		}
		from := d.Pos()
		if doc != nil {
			from = doc.Pos()
		}
		return string(src[fset.Position(from).Offset:fset.Position(d.End()).Offset])
	}
	t.Fatalf("%s declares no %s", file, name)
	return ""
}
