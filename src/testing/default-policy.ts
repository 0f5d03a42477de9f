import type { StorePolicy } from '#core/model.ts';

/** The policy of a store without settings of the administrator. */
export const defaultPolicy: StorePolicy = {
  onDelete: 'delete',
  retention: 0,
  readOnly: false,
  maxVolumes: undefined,
  maxBytes: undefined,
  defaultSize: undefined,
  inline: undefined,
};
