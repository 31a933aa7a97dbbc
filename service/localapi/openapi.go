package localapi

import _ "embed"

// OpenAPI is the document of this API (OpenAPI 3.1). It is printed from the
// table of routes and the structs of package api by
// `go test ./service/localapi -run TestOpenAPI -update`.
//
//go:embed openapi.json
var OpenAPI []byte
