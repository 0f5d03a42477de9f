/** Keys whose values are text for people, which may change at any time. */
const prose = new Set(['description', 'summary', 'title', 'message', 'example', 'examples']);

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Inside these, keys such as `title` are names of fields. */
const namesFields = new Set(['properties', 'paths', 'schemas', 'responses']);

/**
 * Flattens a schema or an OpenAPI document: one line per leaf, with its path and value, without prose. Lists of plain values (`required`,
 * `enum`) are sets: their order has no meaning.
 */
export function flat(value: unknown, path = '', within = ''): readonly string[] {
  const at = path === '' ? '' : `${path}.`;
  if (Array.isArray(value)) {
    if (value.length === 0) return [`${path}: []`];
    return value.flatMap((one, index) =>
      isObject(one) || Array.isArray(one) ? flat(one, `${at}${nameOf(one) ?? index}`) : [`${path}: ${String(one)}`],
    );
  }
  if (!isObject(value)) return [`${path}: ${String(value)}`];
  const kept = Object.entries(value).filter(([key]) => namesFields.has(within) || !prose.has(key));
  if (kept.length === 0) return [`${path}: {}`];
  return kept.flatMap(([key, one]) => flat(one, at + key, key));
}

/**
 * Parameters and columns are identified by `name`, CEL rules by their text, so that adding one doesn't change the paths
 * of the others.
 */
const nameOf = (value: unknown): string | undefined => {
  if (!isObject(value)) return undefined;
  const name = value['name'] ?? value['rule'];
  return typeof name === 'string' ? name : undefined;
};
