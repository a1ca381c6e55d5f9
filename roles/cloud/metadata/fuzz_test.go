package metadata

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// seeds are the replies of testdata to one provider.
func seeds(f *testing.F, provider string) {
	f.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range files {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		of := ""
		for _, s := range a.Files {
			switch {
			case s.Name == "provider":
				of = strings.TrimSpace(string(s.Data))
			case of == provider && (s.Name == "file" || strings.HasPrefix(s.Name, "GET ")):
				f.Add(s.Data)
			}
		}
	}
}

// decoder fuzzes one decoder: it returns a usable reply or an error that is ErrInvalid.
func decoder(f *testing.F, provider string, decode func([]byte) ([]nic, error)) {
	f.Helper()
	seeds(f, provider)
	own := []netip.Addr{netip.MustParseAddr("10.240.0.36"), netip.MustParseAddr("2001:db8::4")}
	f.Fuzz(func(t *testing.T, b []byte) {
		nics, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if err := validate(nics, own); err != nil {
			t.Fatal(err)
		}
	})
}

func decodeFileXML(b []byte) ([]nic, error) { return decodeFile(b) }

func FuzzAzure(f *testing.F) {
	f.Add([]byte(strings.Repeat("<Interfaces>", 100)))
	f.Add([]byte(`<Interfaces xmlns="x"><a:Interface xmlns:a="y" MacAddress="*"/></Interfaces>`))
	decoder(f, "azure", func(b []byte) ([]nic, error) { return decodeAzure(b) })
}

func FuzzIMDS(f *testing.F)         { decoder(f, "azure-imds", decodeIMDS) }
func FuzzGCP(f *testing.F)          { decoder(f, "gcp", decodeGCP) }
func FuzzOracle(f *testing.F)       { decoder(f, "oracle", decodeOracle) }
func FuzzOpenStack(f *testing.F)    { decoder(f, "openstack", decodeOpenStack) }
func FuzzDigitalOcean(f *testing.F) { decoder(f, "digitalocean", decodeDigitalOcean) }
func FuzzHetzner(f *testing.F)      { decoder(f, "hetzner", decodeHetzner) }
func FuzzVultr(f *testing.F)        { decoder(f, "vultr", decodeVultr) }
func FuzzFile(f *testing.F)         { decoder(f, "file", decodeFileXML) }

// FuzzKeys fuzzes the clouds whose interfaces are trees of keys. Every key has the same
// text.
func FuzzKeys(f *testing.F) {
	for _, provider := range []string{"aws", "alibaba", "tencent"} {
		seeds(f, provider)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		k := &keys{a: &api{}, err: context.Canceled} // no request is sent
		if k.text(t.Context(), "x") != "" {
			t.Fatal("a request was sent")
		}
		list := split(string(b))
		text := strings.TrimSpace(string(b))
		for _, subnets := range [][]subnet{
			awsFamily(list, list, list), awsFamily([]string{"10.0.0.0/8"}, list, list), awsFamily([]string{"2001:db8::/32"}, list, list),
			alibabaFamily(text, text, list, list, list), alibabaFamily("", text, []string{"10.0.0.0/8"}, list, list),
		} {
			if err := validate([]nic{{mac: "*", id: text, network: list, dns: list, subnets: subnets}}, nil); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A hostile reply can only be deep or large, because entities are not expanded.
func TestBombs(t *testing.T) {
	deep := maxBody / len("<Interfaces>")
	for name, b := range map[string]string{
		"open XML":   strings.Repeat("<Interfaces>", deep),
		"closed XML": strings.Repeat("<Interfaces>", deep/3) + strings.Repeat("</Interfaces>", deep/3),
		"JSON":       strings.Repeat("[", maxBody),
		"object":     strings.Repeat(`{"Interfaces":`, maxBody/15),
	} {
		nics, err := decodeFileXML([]byte(b))
		if err == nil {
			err = validate(nics, nil)
		} else if errors.Is(err, ErrInvalid) {
			err = nil
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string]string{
		"YAML":      strings.Repeat("- ", maxBody/2),
		"flow YAML": strings.Repeat("[", maxBody),
	} {
		if _, err := decodeHetzner([]byte(b)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
