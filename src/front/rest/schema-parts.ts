import { type TObject, type TProperties, type TSchema, Type } from 'typebox';
import { labelKeyPattern, labelLimits, labelValuePattern, ownLabelPattern } from '#core/labels.ts';
import { namePattern } from '#core/names.ts';

export const object = <P extends TProperties>(properties: P, description?: string): TObject<P> =>
  Type.Object(properties, { additionalProperties: false, ...(description === undefined ? {} : { description }) });
export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()]);
export const oneOf = <T extends string>(...values: T[]) => Type.Unsafe<T>(Type.Enum(values));

export const time = Type.String({ format: 'date-time', description: 'RFC 3339, UTC' });
export const bytes = Type.String({ pattern: '^[0-9]{1,19}$', description: 'Bytes, as a decimal string' });
/** validation.ts recognizes the titles and lets core explain what is wrong with a name. */
const nameOf = (what: 'Volume' | 'Store') =>
  Type.String({
    title: `${what} name`,
    pattern: namePattern,
    description: "1 to 128 of A-Z a-z 0-9 _ . -, beginning with a letter or digit; no '..', not ending in '.meta'",
  });
export const volumeName = nameOf('Volume');
export const storeName = nameOf('Store');
export const labelKey = Type.String({ pattern: labelKeyPattern });
export const labelValue = Type.String({ maxLength: labelLimits.length, pattern: labelValuePattern });
export const labels = Type.Record(labelKey, labelValue, {
  title: 'Labels',
  maxProperties: labelLimits.most,
  additionalProperties: false,
});
/** Labels that only Stowage itself sets: core/labels.ts. */
export const ownLabels = Type.Record(Type.String({ pattern: ownLabelPattern }), labelValue, {
  maxProperties: 16,
  additionalProperties: false,
  description: 'Labels that Stowage sets, such as the name of the claim; only for administrators',
});
