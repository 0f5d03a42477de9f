import type { StorePolicy } from '#core/model.ts';

/** Of a store about which the administrator said nothing. */
export const defaultPolicy: StorePolicy = {
  onDelete: 'delete',
  retention: 0,
  readOnly: false,
  maxVolumes: undefined,
  maxBytes: undefined,
  defaultSize: undefined,
  inline: undefined,
};
