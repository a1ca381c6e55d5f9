// The program makes calls with DraNet's own client of its webhook, as DraNet does, and prints what DraNet would configure.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/dranet/pkg/apis"
	"sigs.k8s.io/dranet/pkg/cloudprovider"
	"sigs.k8s.io/dranet/pkg/cloudprovider/webhook"
)

// The arguments are the URL, "prepare" or "release", the UID of the claim, the device's name, and the parameters of the claim.
func main() {
	out, err := run(os.Args[1], os.Args[2], types.UID(os.Args[3]), os.Args[4], os.Args[5])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, what string, claim types.UID, device, parameters string) (*apis.NetworkConfig, error) {
	ctx := context.Background()
	if !webhook.OnWebhook(ctx, url) {
		return nil, errors.New("DraNet finds no webhook")
	}
	p, err := webhook.NewWebhookProvider(ctx, url)
	if err != nil {
		return nil, err
	}
	if !p.HasProfileProvider() || p.HasCloudProvider() {
		return nil, errors.New("DraNet expects a provider of profiles and not of a cloud")
	}
	user, errs := apis.ValidateConfig(&runtime.RawExtension{Raw: []byte(parameters)})
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	id := cloudprovider.DeviceIdentifiers{Name: device, MAC: "02:00:00:00:00:01"}
	if what == "release" {
		id.MAC = "" // the device has left the inventory
		return user, p.ReleaseProfileConfig(id, claim, user)
	}
	profile, err := p.GetProfileConfig(id, claim, user)
	if err != nil {
		return nil, err
	}
	merged := apis.MergeNetworkConfig(user, profile)
	raw, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	_, errs = apis.ValidateConfig(&runtime.RawExtension{Raw: raw})
	return merged, errors.Join(errs...)
}
