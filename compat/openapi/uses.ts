// Uses types that openapi-typescript generated from docs/openapi.json.
import type { components, operations, paths } from "./bellglass";

export type Sandbox = components["schemas"]["Sandbox"];
type OutputLine = components["schemas"]["OutputLine"];
type Created = operations["createSandbox"]["responses"]["201"]["content"]["application/json"];
type Content = paths["/v1/sandboxes/{sandbox}/files/content"]["put"]["requestBody"]["content"]["application/octet-stream"];

export const id = (created: Created): string => created.id;
export const content: Content = "bytes";

// The compiler narrows a tagged union by its tag.
export function exitCode(line: OutputLine): number | undefined {
    if (line.type === "end" && line.end.outcome.kind === "exited") {
        return line.end.outcome.code;
    }
    return undefined;
}
