import type { Access, Labels, VolumeId, VolumeName, VolumeSpec } from './model.ts';

/** A volume spec as JSON values, for an operation's record. */
export function specParams(spec: VolumeSpec): Record<string, unknown> {
  return { ...spec, bytes: spec.bytes === undefined ? null : String(spec.bytes) };
}

export function specFrom(params: Readonly<Record<string, unknown>>): VolumeSpec {
  const bytes = params['bytes'];
  return {
    id: params['id'] as VolumeId,
    name: params['name'] as VolumeName,
    bytes: typeof bytes === 'string' ? BigInt(bytes) : undefined,
    enforce: params['enforce'] === true,
    access: params['access'] as Access,
    labels: params['labels'] as Labels,
    requestId: String(params['requestId']),
    createdAt: Number(params['createdAt']),
    instance: String(params['instance']),
  };
}
