package metadata

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// dmiDir is the kernel's directory of the machine's firmware tables (DMI).
const dmiDir = "/sys/class/dmi/id"

// azureAsset is the chassis asset tag of all Azure VMs. Other Hyper-V machines do not have it.
const azureAsset = "7783-7084-3265-9085-8269-3286-77"

// suggestion maps the prefix of a DMI field to providers.
type suggestion struct {
	field, begins string
	providers     []string
}

func suggestions() []suggestion {
	return []suggestion{
		{"chassis_asset_tag", azureAsset, []string{"azure", "azure-imds"}},
		{"sys_vendor", "Amazon EC2", []string{"aws"}},
		{"chassis_asset_tag", "Amazon EC2", []string{"aws"}},
		{"product_name", "Google Compute Engine", []string{"gcp"}},
		{"product_name", "Alibaba Cloud ECS", []string{"alibaba"}},
		{"sys_vendor", "Tencent Cloud", []string{"tencent"}},
		{"chassis_asset_tag", "OracleCloud.com", []string{"oracle"}},
		{"sys_vendor", "DigitalOcean", []string{"digitalocean"}},
		{"sys_vendor", "Hetzner", []string{"hetzner"}},
		{"sys_vendor", "Vultr", []string{"vultr"}},
		{"product_name", "OpenStack Nova", []string{"openstack"}},
		{"product_name", "OpenStack Compute", []string{"openstack"}},
		{"chassis_asset_tag", "OpenTelekomCloud", []string{"openstack"}},
	}
}

func auto() Provider {
	return Provider{
		Name:    "auto",
		Summary: "the cloud that the machine's DMI data names (" + dmiDir + ")",
		Fetch:   fetchAuto,
	}
}

// fetchAuto tries the providers for this machine until one replies.
func fetchAuto(ctx context.Context, q Query) (*Reply, error) {
	if q.DMI == "" {
		q.DMI = dmiDir
	}
	names, saw := detect(q.DMI)
	if len(names) == 0 {
		return nil, fmt.Errorf("auto: %w: %s has the values %s, which no known cloud has: set the provider (%s)",
			ErrNoAddresses, q.DMI, saw, strings.Join(providerNames(), ", "))
	}
	var last error
	for i, name := range names {
		p, _ := Lookup(name)
		r, err := fetchShare(ctx, p, q, len(names)-i)
		if err == nil || !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRefused) {
			return r, err
		}
		last = err
	}
	return nil, last
}

// fetchShare queries one of several providers in its share of the time.
func fetchShare(ctx context.Context, p Provider, q Query, share int) (*Reply, error) {
	ctx, cancel := shareOf(ctx, share)
	defer cancel()
	return p.Fetch(ctx, q)
}

// detect returns the providers for the machine's DMI fields, and the fields as text for a message.
func detect(dir string) (names []string, saw string) {
	fields := map[string]string{}
	var texts []string
	for _, f := range []string{"sys_vendor", "product_name", "chassis_asset_tag"} {
		b, err := os.ReadFile(filepath.Join(dir, f))
		text := printable(string(b[:min(len(b), maxText)]))
		if err != nil || text == "" {
			texts = append(texts, f+" nothing")
			continue
		}
		fields[f] = text
		texts = append(texts, fmt.Sprintf("%s %q", f, text))
	}
	for _, s := range suggestions() {
		if strings.HasPrefix(fields[s.field], s.begins) {
			return s.providers, strings.Join(texts, ", ")
		}
	}
	return nil, strings.Join(texts, ", ")
}
