import type { StowageError } from './errors.ts';
import type { VolumeName } from './model.ts';
import { isVolumeName } from './names.ts';

const braces = /\{([^{}]*)\}/g;
const validField = /^(?:namespace|name|uid|label:[^{}]+|annotation:[^{}]+)$/;

/** A placeholder such as `{namespace}` or `{label:team}`, replaced by a value of the claim. */
export interface TemplateField {
  /** The text between the braces. */
  readonly text: string;
  /** `namespace`, `name`, `uid`, `label` or `annotation`; anything else is invalid. */
  readonly kind: string;
  /** The key of the label or annotation; otherwise empty. */
  readonly key: string;
}

/** True if every field is valid and every brace belongs to a field. */
export function isNameTemplate(template: string): boolean {
  const fields = Array.from(template.matchAll(braces), ([, text = '']) => text);
  return fields.every((text) => validField.test(text)) && !/[{}]/.test(template.replaceAll(braces, ''));
}

export interface TemplateValues {
  /** The claim's value. Empty or undefined: the claim has none. Throws for a field that the caller cannot provide. */
  readonly value: (field: TemplateField) => string | undefined;
  readonly missing: (field: TemplateField) => StowageError;
  /** The error for a result that is not a valid volume name. */
  readonly unfit: (name: string) => StowageError;
}

/** The volume name that a StorageClass's template produces. */
export function nameFromTemplate(template: string, { value, missing, unfit }: TemplateValues): VolumeName {
  const name = template.replaceAll(braces, (_, text: string) => {
    const [kind = '', ...rest] = text.split(':');
    const field = { text, kind, key: rest.join(':') };
    const claimValue = value(field);
    if (claimValue === undefined || claimValue === '') throw missing(field);
    return claimValue;
  });
  if (isVolumeName(name)) return name;
  throw unfit(name);
}
