module github.com/cnibox/cnibox/test/peers/vex

go 1.26

require github.com/openvex/go-vex v0.2.8

require (
	github.com/in-toto/attestation v1.2.0 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/package-url/packageurl-go v0.1.5 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
