import { type TObject, type TProperties, type TSchema, Type } from 'typebox';
import { namePattern } from '#core/names.ts';

export const object = <P extends TProperties>(properties: P, description?: string): TObject<P> =>
  Type.Object(properties, { additionalProperties: false, ...(description === undefined ? {} : { description }) });
export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()]);
export const oneOf = <T extends string>(...values: T[]) => Type.Unsafe<T>(Type.Enum(values));

export const time = Type.String({ format: 'date-time', description: 'RFC 3339, UTC' });
export const bytes = Type.String({ pattern: '^[0-9]{1,19}$', description: 'Bytes, as a decimal string' });
/** The titles tell validation.ts that core itself says what is wrong with it. */
const nameOf = (what: 'Volume' | 'Store') =>
  Type.String({
    title: `${what} name`,
    pattern: namePattern,
    description: "1 to 128 of A-Z a-z 0-9 _ . -, beginning with a letter or digit; no '..', not ending in '.meta'",
  });
export const volumeName = nameOf('Volume');
export const storeName = nameOf('Store');
const labelPattern = '^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$';
export const labelKey = Type.String({ pattern: labelPattern });
export const labelValue = Type.String({ maxLength: 256, pattern: '^[^\\u0000-\\u001f\\u007f]*$' });
export const labels = Type.Record(labelKey, labelValue, {
  title: 'Labels',
  maxProperties: 64,
  additionalProperties: false,
});
/** Those that only Stowage itself sets: core/labels.ts. */
export const ownLabels = Type.Record(Type.String({ pattern: '^stowage\\.dev/[a-z-]{1,64}$' }), labelValue, {
  maxProperties: 16,
  additionalProperties: false,
  description: 'What Stowage itself notes, such as the claim that it is for; administrators only',
});
