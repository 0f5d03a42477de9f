import type { StowageError } from './errors.ts';

/** Parameters of a StorageClass, or of an inline volume in a pod. Undefined: not set. */
export interface VolumeParameters {
  readonly store: string | undefined;
  readonly enforce: boolean | undefined;
  readonly nameTemplate: string | undefined;
  readonly size: string | undefined;
}

export type ParameterName = keyof VolumeParameters;

export const classParameters: readonly ParameterName[] = ['store', 'enforce', 'nameTemplate'];
/** Inline volumes have no `nameTemplate`: their names follow from the pod. */
export const podParameters: readonly ParameterName[] = ['store', 'enforce', 'size'];

/** Each caller words these errors itself. */
export interface ParameterFaults {
  readonly unknown: (key: string) => StowageError;
  /** The value of `enforce` is neither `true` nor `false`. */
  readonly notBoolean: (value: string) => StowageError;
}

/** Throws for parameters that are not allowed, instead of silently ignoring them. */
export function readParameters(
  parameters: Iterable<readonly [key: string, value: string]>,
  allowed: readonly ParameterName[],
  errors: ParameterFaults,
): VolumeParameters {
  const values = new Map<string, string>(parameters);
  for (const key of values.keys()) if (!allowed.some((name) => name === key)) throw errors.unknown(key);
  const enforce = values.get('enforce');
  if (enforce !== undefined && enforce !== 'true' && enforce !== 'false') throw errors.notBoolean(enforce);
  return {
    store: values.get('store') || undefined,
    enforce: enforce === undefined ? undefined : enforce === 'true',
    nameTemplate: values.get('nameTemplate'),
    size: values.get('size'),
  };
}
