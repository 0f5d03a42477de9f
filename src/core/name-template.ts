import type { StowageError } from './errors.ts';
import type { VolumeName } from './model.ts';
import { isVolumeName } from './names.ts';

const braces = /\{([^{}]*)\}/g;
const known = /^(?:namespace|name|uid|label:[^{}]+|annotation:[^{}]+)$/;

/** Text in braces, such as `{namespace}` or `{label:team}`. It stands for what a claim has. */
export interface TemplateField {
  /** Without the braces. */
  readonly text: string;
  /** `namespace`, `name`, `uid`, `label` or `annotation`; anything else is not known. */
  readonly kind: string;
  /** Which label or annotation. Empty for the others. */
  readonly key: string;
}

/** True if every field is known and no brace is left over. */
export function isNameTemplate(template: string): boolean {
  const fields = Array.from(template.matchAll(braces), ([, text = '']) => text);
  return fields.every((text) => known.test(text)) && !/[{}]/.test(template.replaceAll(braces, ''));
}

export interface TemplateValues {
  /** What the claim has. Empty or undefined: it has none. Throws for a field that the caller cannot know. */
  readonly value: (field: TemplateField) => string | undefined;
  readonly missing: (field: TemplateField) => StowageError;
  /** The result cannot be the name of a volume. */
  readonly unfit: (name: string) => StowageError;
}

/** The name that a volume gets by the template of its class. */
export function nameFromTemplate(template: string, { value, missing, unfit }: TemplateValues): VolumeName {
  const name = template.replaceAll(braces, (_, text: string) => {
    const [kind = '', ...rest] = text.split(':');
    const field = { text, kind, key: rest.join(':') };
    const found = value(field);
    if (found === undefined || found === '') throw missing(field);
    return found;
  });
  if (isVolumeName(name)) return name;
  throw unfit(name);
}
